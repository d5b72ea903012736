# minidl with the command as its entry point.
#   docker build -t minidl .                                    for a CPU, and for simulated devices
#   docker build -t minidl:cuda --build-arg EXTRAS=cuda13 .     for a GPU; run it with --gpus all
# All packages come from the package index; the driver is the host's.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG EXTRAS=data,viz
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /work
COPY . /tmp/minidl
RUN pip install --no-cache-dir "/tmp/minidl[${EXTRAS}]" && rm -rf /tmp/minidl
# Compiled kernels are kept here: a volume saves the next container from compiling them again.
ENV NUMBA_CACHE_DIR=/var/cache/minidl
RUN mkdir -m 1777 /var/cache/minidl
ENTRYPOINT ["minidl"]
