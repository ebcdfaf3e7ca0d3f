# The rig's parts and the command line, for docker-compose.yml: a development API server, kubelets, kube-scheduler's stand-in, `hami` and kubectl.
#
#   docker build --file deploy/docker/rig.Dockerfile --tag hami/rig:0.1.0 .
#
# Every dependency is the one that requirements.lock names, by hash; nothing that builds is in the result.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /source
COPY requirements.lock pyproject.toml ./
RUN sed -n '/^uv==/,/# via/p' requirements.lock >uv.lock && pip install --no-cache-dir --require-hashes --requirement uv.lock
RUN uv venv /opt/hami \
    && uv pip install --no-cache --compile-bytecode --python /opt/hami/bin/python \
        --constraint requirements.lock --requirement pyproject.toml --extra rig
COPY README.md LICENSE ./
COPY libs libs
COPY services services
COPY cli cli
COPY deploy/kustomize deploy/kustomize
COPY rig rig
RUN uv pip install --no-cache --no-deps --compile-bytecode --python /opt/hami/bin/python --build-constraint requirements.lock .

FROM python:${PYTHON}
COPY --from=build /opt/hami /opt/hami
WORKDIR /hami
COPY examples examples
ENV PATH=/opt/hami/bin:$PATH PYTHONUNBUFFERED=1
# In docker-compose.yml it runs as root, since the volume of the kubelets' folders is root's and the agents write there too.
USER 65532:65532
CMD ["hami", "--help"]
