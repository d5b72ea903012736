/* A driver that refuses every call that cuDNN makes of it when plans are listed (CUDA_ERROR_NO_DEVICE). */
#define REFUSED(call) int call() { return 100; }
REFUSED(cuGetErrorString)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleUnload)
REFUSED(cuTensorMapEncodeIm2col)
REFUSED(cuTensorMapEncodeTiled)
