# The node-agent, with the shim that it installs on its host.
#
#   docker build --file deploy/docker/node-agent.Dockerfile --tag hami/node-agent:0.1.0 .
#
# Every dependency is the one that requirements.lock names, by hash; nothing that builds is in the result.
ARG PYTHON=3.11-slim-bookworm

# The shim, against glibc 2.17, so that it loads in containers of any age.
FROM python:3.11-bookworm AS shim
WORKDIR /source
COPY requirements-shim.lock ./
RUN sed -n '/^ziglang==/,/# via/p' requirements-shim.lock >zig.lock && pip install --no-cache-dir --require-hashes --requirement zig.lock
COPY cshim cshim
RUN make -C cshim PYTHON=python3 BUILD=/build "/build/release/$(uname -m)/libvgpu.so" \
    && install -D --mode=0755 "/build/release/$(uname -m)/libvgpu.so" /opt/hami/lib/libvgpu.so

FROM python:${PYTHON} AS build
WORKDIR /source
COPY requirements.lock pyproject.toml ./
RUN sed -n '/^uv==/,/# via/p' requirements.lock >uv.lock && pip install --no-cache-dir --require-hashes --requirement uv.lock
RUN uv venv /opt/hami \
    && uv pip install --no-cache --compile-bytecode --python /opt/hami/bin/python \
        --constraint requirements.lock --requirement pyproject.toml --extra node-agent
COPY README.md LICENSE ./
COPY libs libs
COPY services services
COPY cli cli
COPY deploy/kustomize deploy/kustomize
COPY rig rig
RUN uv pip install --no-cache --no-deps --compile-bytecode --python /opt/hami/bin/python --build-constraint requirements.lock .

FROM python:${PYTHON}
COPY --from=build /opt/hami /opt/hami
COPY --from=shim /opt/hami/lib/libvgpu.so /opt/hami/lib/libvgpu.so
ENV PATH=/opt/hami/bin:$PATH PYTHONUNBUFFERED=1
# On a node it runs as root, whose folders kubelet's and CDI's are; the DaemonSet says so.
USER 65532:65532
ENTRYPOINT ["hami-node-agent"]
