// One layer of the network. examples/common/ptx makes kernels.ptx of it.

// A thread for each output of each row: y[row, output] = weight[output] * x[row] + bias[output], with ReLU if `relu`.
extern "C" __global__ void dense(float* y, const float* x, const float* weight, const float* bias, unsigned rows,
                                 unsigned inputs, unsigned outputs, unsigned relu) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * outputs) return;
  const float* const w = weight + (i % outputs) * static_cast<unsigned long long>(inputs);
  const float* const in = x + (i / outputs) * static_cast<unsigned long long>(inputs);
  float sum = bias[i % outputs];
  for (unsigned column = 0; column < inputs; ++column) sum += w[column] * in[column];
  y[i] = relu ? fmaxf(sum, 0.0f) : sum;
}
