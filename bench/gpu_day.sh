#!/bin/sh
# One of the four calls of the first day on a GPU (docs/gpu.md):  sh bench/gpu_day.sh CALL FOLDER [flags of bench/gpu.py]
# FOLDER/gpu-day.tar.gz has the results and what is kept on disk, of this call and of those before it.
set -u
usage="usage: sh bench/gpu_day.sh 1|2|3|4 FOLDER [flags of bench/gpu.py]"
[ $# -ge 2 ] || { echo "$usage" >&2; exit 2; }
call=$1
mkdir -p "$2" && folder=$(cd "$2" && pwd) || exit 2
shift 2
case $call in
    1) parts="properties order large sanitizer torch" ;;
    2) parts="warm ops identity" ;;
    3) parts="link bandwidth speed host convolutions" ;;
    4) parts="managed prediction models" ;;
    *) echo "$usage" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.." || exit 2
if [ -f "$folder/gpu-day.tar.gz" ]; then
    tar xzf "$folder/gpu-day.tar.gz" -C "$folder" || exit 2
fi
if [ -z "${CUDA_HOME:-}" ] && nvcc=$(command -v nvcc); then  # numba-cuda finds libnvvm there
    CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    export CUDA_HOME
fi
XDG_CACHE_HOME="$folder/day/cache" PYTHONUNBUFFERED=1 python3 bench/gpu.py --minutes 8.5 --out "$folder/day" "$@" --parts $parts
code=$?
tar czf "$folder/gpu-day.tar.gz" -C "$folder" day || exit 2
exit $code
