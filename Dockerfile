# Orrery in a container: docker build -t orrery . ; docker run --rm -v "$PWD:/work" orrery run quickstart
FROM debian:12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
      cmake ninja-build g++ pkg-config python3 python3-dev python3-venv libsimgrid-dev libyaml-cpp-dev nlohmann-json3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python3 -m venv /opt/orrery && /opt/orrery/bin/pip install --no-cache-dir --config-settings cmake.define.ORRERY_UNITY=ON '/source[parquet]'

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3 libsimgrid3.32 libyaml-cpp0.7 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/orrery /opt/orrery
WORKDIR /work
ENTRYPOINT ["/opt/orrery/bin/orrery"]
