# The registry.
#
#   docker build --file deploy/docker/registry.Dockerfile --tag hami/registry:0.1.0 .
#
# Every dependency is the one that requirements.lock names, by hash; nothing that builds is in the result.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /source
COPY requirements.lock pyproject.toml ./
RUN sed -n '/^uv==/,/# via/p' requirements.lock >uv.lock && pip install --no-cache-dir --require-hashes --requirement uv.lock
RUN uv venv /opt/hami \
    && uv pip install --no-cache --compile-bytecode --python /opt/hami/bin/python \
        --constraint requirements.lock --requirement pyproject.toml --extra registry
COPY README.md LICENSE ./
COPY libs libs
COPY services services
COPY cli cli
COPY deploy/kustomize deploy/kustomize
COPY rig rig
RUN uv pip install --no-cache --no-deps --compile-bytecode --python /opt/hami/bin/python --build-constraint requirements.lock .

FROM python:${PYTHON}
COPY --from=build /opt/hami /opt/hami
ENV PATH=/opt/hami/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["hami-registry"]
