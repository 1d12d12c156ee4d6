# The commands in a container (docs/train.md, Containers). This file has not been built by its authors, who had no docker.
#
#   docker build -t demo-sdtps .                                    for CPUs
#   docker build --build-arg DEVICE=cuda -t demo-sdtps:cuda .       for NVIDIA GPUs, with the NVIDIA Container Toolkit on the host
#   docker run --rm --gpus all --shm-size 8g -v "$PWD/data:/app/data" -v "$PWD/runs:/app/runs" demo-sdtps:cuda \
#       train RGBNT201/DeMo_SDTPS
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# cpu or cuda. PyPI's wheels of torch contain CUDA; those for CPUs are in an index of their own and a tenth of the size.
ARG DEVICE=cpu
ARG EXTRAS=search,report,onnx

WORKDIR /app
COPY . .
RUN case "$DEVICE" in \
        cpu) export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu ;; \
        cuda) ;; \
        *) echo "DEVICE is $DEVICE, but it must be cpu or cuda" >&2; exit 2 ;; \
    esac \
    && pip install --no-cache-dir --constraint constraints.txt --editable ./vit_slim --editable ".[$EXTRAS]" \
    && useradd --create-home user && mkdir -p data runs && chown user data runs

USER user
ENTRYPOINT ["demo-sdtps"]
CMD ["--help"]
