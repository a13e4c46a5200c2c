// A device "cuda" for a torch that was built without CUDA. Its tensors lie in the CPU's memory.
//
// Such a torch has no kernel for CUDA, so every operator comes to fallback() below. It checks whether CUDA
// would take these tensors together, and then calls the CPU's kernel on the same memory. ProcessGroupNCCL
// checks what NCCL checks, and lets gloo carry the data. The errors that a GPU would raise have CUDA's own
// words; what this file cannot do begins with "pretended CUDA:", and is never a fault of a lesson.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using Tensors = std::vector<at::Tensor>;

constexpr auto CUDA = c10::DeviceType::CUDA;
constexpr int MOST = 64;  // GPUs

DeviceIndex gpus() {  // asked anew each time: a fork may have another number than the process before it
  const char* said = std::getenv("PRETEND_GPUS");
  int there = said ? std::atoi(said) : 0;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return there;
  std::string names(visible);
  if (names.empty() || names[0] == '-') return 0;  // -1 hides all of them
  return std::min<int>(there, 1 + std::count(names.begin(), names.end(), ','));
}

PyObject* listener = nullptr;  // called with whatever would make the processor wait for the GPU

// Copies to the CPU that nothing has waited for: until then, what is read there is NaN.
struct Sent {
  at::Tensor to, data;
};
std::vector<Sent>& sent = *new std::vector<Sent>();
std::mutex sent_mutex;

void deliver() {
  std::vector<Sent> ready;
  {
    std::lock_guard lock(sent_mutex);
    ready.swap(sent);
  }
  for (auto& [to, data] : ready) std::memcpy(to.mutable_data_ptr(), data.const_data_ptr(), to.nbytes());
}

void wait_is_seen(const std::string& what) {
  deliver();
  if (!listener) return;
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::object>(listener)(what);
}

// ---- devices, streams, generators, memory -------------------------------------------------------

thread_local DeviceIndex current = 0;

Device device_or_current(std::optional<Device> device) {
  Device found(CUDA, device && device->has_index() ? device->index() : current);
  TORCH_CHECK(found.index() < gpus(), "CUDA error: invalid device ordinal");
  return found;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  Device getDevice() const override { return Device(CUDA, current); }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override { current = device_or_current(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, Device(CUDA, device.has_index() ? device.index() : current));
  }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return gpus(); }
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(1);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return deliver(), true; }
  bool queryStream(const c10::Stream&) const override { return deliver(), true; }
  void synchronizeStream(const c10::Stream&) const override { wait_is_seen("synchronize"); }
  void synchronizeEvent(void*) const override { wait_is_seen("synchronize"); }
  void synchronizeDevice(const DeviceIndex) const override { wait_is_seen("synchronize"); }
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

at::Generator& generator(DeviceIndex index) {  // each GPU has one, and none is the CPU's
  static std::vector<at::Generator> made = [] {
    std::vector<at::Generator> each;
    for (int i = 0; i < MOST; ++i) each.push_back(at::detail::createCPUGenerator(0));
    return each;
  }();
  return made.at(index < 0 ? current : index);
}

struct Memory {  // of a GPU
  std::atomic<int64_t> now = 0, most = 0;
};
std::array<Memory, MOST> memory;

// What keeps a block of memory alive. A GPU's counts, in multiples of 512 bytes, as CUDA's allocator gives it.
struct Kept {
  c10::Storage storage;
  c10::DataPtr data;
  int64_t bytes;
  Device device;

  Kept(c10::Storage storage, c10::DataPtr data, size_t size, Device device)
      : storage(std::move(storage)), data(std::move(data)), bytes((size + 511) / 512 * 512), device(device) {
    if (!device.is_cuda()) return;
    auto& [now, most] = memory.at(device.index());
    now += bytes;
    most = std::max<int64_t>(most, now);
  }
  ~Kept() {
    if (device.is_cuda()) memory.at(device.index()).now -= bytes;
  }
};

c10::DataPtr held_by(void* data, Kept* kept) {
  return c10::DataPtr(data, kept, [](void* kept) { delete static_cast<Kept*>(kept); }, kept->device);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    return on(Device(CUDA, current), size);
  }
  c10::DataPtr on(Device device, size_t size) {
    auto made = c10::GetCPUAllocator()->allocate(size);
    auto* data = made.get();
    return held_by(data, new Kept({}, std::move(made), size, device));
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
Allocator allocator;
REGISTER_ALLOCATOR(CUDA, &allocator)

struct Pinned final : c10::Allocator {  // remembers its blocks, because FSDP asks whether a tensor is pinned
  std::map<const char*, std::pair<size_t, c10::DataPtr>> blocks;
  mutable std::mutex mutex;

  c10::DataPtr allocate(size_t size) override;
  bool has(const void* pointer) const {
    std::lock_guard lock(mutex);
    auto* data = static_cast<const char*>(pointer);
    auto after = blocks.upper_bound(data);
    return after != blocks.begin() && data < (--after)->first + after->second.first;
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
Pinned& pinned = *new Pinned();  // never freed: tensors may be freed after it

c10::DataPtr Pinned::allocate(size_t size) {
  auto made = c10::GetCPUAllocator()->allocate(size);
  auto* data = made.get();
  if (!data) return made;
  std::lock_guard lock(mutex);
  blocks[static_cast<char*>(data)] = {size, std::move(made)};
  auto drop = [](void* kept) {
    std::lock_guard lock(pinned.mutex);
    pinned.blocks.erase(static_cast<char*>(kept));
  };
  return c10::DataPtr(data, data, drop, Device(at::kCPU));
}

}  // namespace

namespace at {  // where the registry looks for it
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return gpus() > 0; }
  bool hasCUDA() const override { return gpus() > 0; }
  bool hasCUDART() const override { return gpus() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { Guard().setDevice(c10::Device(c10::kCUDA, index)); }
  DeviceIndex deviceCount() const override { return gpus(); }
  int getNumGPUs() const override { return gpus(); }
  const Generator& getDefaultGenerator(DeviceIndex index) const override { return generator(index); }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(0); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  bool isPinnedPtr(const void* data) const override { return pinned.has(data); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace {

// ---- the same memory, seen from the CPU and from the GPU ----------------------------------------

at::Tensor with_storage(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

at::Tensor seen_from(const at::Tensor& tensor, Device device) {
  auto storage = tensor.storage();
  auto* data = storage.unsafeGetStorageImpl()->mutable_data();
  auto* allocates = device.is_cpu() ? c10::GetCPUAllocator() : &allocator;
  auto pointer = held_by(data, new Kept(storage, {}, storage.nbytes(), device));
  c10::Storage seen(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer), allocates, true);
  return with_storage(std::move(seen), tensor, device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

at::Tensor on_cpu(const at::Tensor& tensor) { return tensor.is_cuda() ? seen_from(tensor, at::kCPU) : tensor; }

// The tensors of one call: for each tensor of the GPU, what the CPU's kernel sees.
struct Seen {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // GPU, CPU
  std::optional<Device> device;

  at::Tensor cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    for (auto& [gpu, cpu] : pairs)
      if (gpu.is_same(tensor)) return cpu;
    c10::Storage same;  // tensors that share memory must also share it on the CPU
    for (auto& [gpu, cpu] : pairs)
      if (gpu.storage().is_alias_of(tensor.storage())) same = cpu.storage();
    auto made = same ? with_storage(same, tensor, c10::DispatchKey::CPU) : on_cpu(tensor);
    pairs.emplace_back(tensor, made);
    return made;
  }

  at::Tensor gpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) return tensor;
    for (auto& [gpu, cpu] : pairs)
      if (cpu.is_same(tensor)) return gpu;
    for (auto& [gpu, cpu] : pairs)  // a view
      if (cpu.storage().is_alias_of(tensor.storage()))
        return with_storage(gpu.storage(), tensor, c10::DispatchKey::CUDA);
    return seen_from(tensor, *device);
  }

  void write_back() {  // what the kernel has resized or transposed in place
    for (auto& [gpu, cpu] : pairs) {
      auto* theirs = cpu.storage().unsafeGetStorageImpl();
      auto* ours = gpu.storage().unsafeGetStorageImpl();
      if (theirs->data() != ours->data() || theirs->nbytes() != ours->nbytes()) {
        auto* kept = new Kept(cpu.storage(), {}, theirs->nbytes(), gpu.device());
        ours->set_data_ptr_noswap(held_by(theirs->mutable_data(), kept));
        ours->set_nbytes(theirs->nbytes());
      }
      gpu.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }
};

// ---- every operator -----------------------------------------------------------------------------

// Their result has a size or a value that only the GPU knows: the processor waits for it.
const std::set<std::string> WAITS{
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::bincount", "aten::_unique2",
    "aten::repeat_interleave",   "aten::equal",   "aten::histc",         "aten::multinomial", "aten::_unique",
    "aten::unique_consecutive",  "aten::unique_dim"};
// What CUDA's kernels refuse under use_deterministic_algorithms, and their names for it.
const std::map<std::string, const char*> NOT_DETERMINISTIC{
    {"aten::_adaptive_avg_pool2d_backward", "adaptive_avg_pool2d_backward_cuda"},
    {"aten::_ctc_loss_backward", "ctc_loss_backward_gpu"},
    {"aten::cumsum", "cumsum_cuda_kernel"},
    {"aten::grid_sampler_2d_backward", "grid_sampler_2d_backward_cuda"},
    {"aten::histc", "_histc_cuda"},
    {"aten::kthvalue", "kthvalue CUDA"},
    {"aten::max_unpool2d", "max_unpooling2d_forward_out"},
    {"aten::nll_loss2d_forward", "nll_loss2d_forward_out_cuda_template"},
    {"aten::put_", "put_"},
    {"aten::reflection_pad2d_backward", "reflection_pad2d_backward_cuda"},
    {"aten::upsample_bicubic2d_backward", "upsample_bicubic2d_backward_out_cuda"},
    {"aten::upsample_bilinear2d_backward", "upsample_bilinear2d_backward_out_cuda"}};
const std::set<std::string> INDEXES{
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"};

void check(Seen& seen, const at::Tensor& tensor, const std::string& name, const c10::Argument& argument) {
  if (!tensor.defined()) return;
  constexpr auto words = "Expected all tensors to be on the same device, but found at least two devices, ";
  bool is_index = INDEXES.count(name) && argument.name() == "indices";
  if (tensor.is_cuda()) {
    if (!seen.device) seen.device = tensor.device();
    TORCH_CHECK(*seen.device == tensor.device(), words, *seen.device, " and ", tensor.device(), "! (", name, ")");
    bool is_mask = is_index && tensor.scalar_type() == at::kBool;
    if (is_mask && name != "aten::index") wait_is_seen(name + " with a mask");  // that one calls nonzero
  } else if (tensor.is_cpu() && is_index) {
    wait_is_seen(name + " with indices of the CPU");
  } else if (tensor.is_cpu()) {
    bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
    bool is_scalar = tensor.dim() == 0 && !is_written;
    TORCH_CHECK(is_scalar, words, "cuda and cpu! (", name, ", argument ", argument.name(), ")");
  }
}

template <class F>
void change_tensors(IValue& value, F change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorList()) list.push_back(change(each));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (std::optional<at::Tensor> each : value.toOptionalTensorList())
      list.push_back(each ? std::optional(change(*each)) : each);
    value = list;
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  IValue* values = stack->data() + stack->size() - arguments.size();
  Seen seen;
  if (WAITS.count(schema.name())) wait_is_seen(schema.name());
  if (auto found = NOT_DETERMINISTIC.find(schema.name()); found != NOT_DETERMINISTIC.end()) {
    bool is_exact = schema.name() == "aten::cumsum" && !values[0].toTensor().is_floating_point();
    if (!is_exact) at::globalContext().alertNotDeterministic(found->second);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = values[i];
    change_tensors(value, [&](const at::Tensor& each) {
      check(seen, each, schema.name(), arguments[i]);
      return seen.cpu(each);
    });
    if (value.isDevice() && value.toDevice().is_cuda()) {
      if (!seen.device) seen.device = device_or_current(value.toDevice());
      value = Device(at::kCPU);
    }
  }
  if (!seen.device) seen.device = Device(CUDA, current);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    auto& own = generator(seen.device->index());
    TORCH_CHECK(
        values[i].isNone() || values[i].toGenerator() == own,
        "Expected a 'cuda' device type for generator but found 'cpu' (", schema.name(), ")");
    values[i] = own;
  }
  try {
    at::AutoDispatchBelowAutograd below;
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    throw std::runtime_error("pretended CUDA: the CPU has no kernel for " + schema.name());
  }
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    change_tensors((*stack)[i], [&](const at::Tensor& each) { return seen.gpu(each); });
  seen.write_back();
}

// ---- the few operators that need more than that -------------------------------------------------

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool>) {
  auto where = device_or_current(device);
  return seen_from(at::empty_strided(size, stride, at::TensorOptions().dtype(dtype).device(at::kCPU)), where);
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  auto like = at::empty(size, at::TensorOptions().dtype(dtype).device(at::kMeta).memory_format(format));
  return empty_strided(like.sizes(), like.strides(), dtype, layout, device, pin);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  // Without non_blocking the processor waits; a copy from memory that is not pinned may wait even with it.
  // (CUDA copies up to 64 KB away before it returns.)
  bool is_free = non_blocking && source.is_cpu() && (source.nbytes() <= 65536 || pinned.has(source.const_data_ptr()));
  bool is_sent = non_blocking && self.is_cpu() && pinned.has(self.const_data_ptr()) && self.is_contiguous();
  if (self.is_cpu() && !is_sent) wait_is_seen("copy to the CPU");
  if (source.is_cpu() && !is_free) wait_is_seen("copy to the GPU");
  if (is_sent) {
    auto data = at::empty_like(self).copy_(on_cpu(source));
    std::memset(self.mutable_data_ptr(), 0xff, self.nbytes());
    std::lock_guard lock(sent_mutex);
    sent.push_back({self, data});
    return self;
  }
  on_cpu(self).copy_(on_cpu(source));
  return self;
}

at::Tensor& set_storage_offset(
    at::Tensor& self, c10::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  auto strides = stride.empty() && !size.empty() ? at::empty(size, at::kMeta).strides().vec() : stride.vec();
  impl->set_sizes_and_strides(size, strides, offset);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage storage) {
  int64_t size = storage.nbytes() / self.element_size();
  return set_storage_offset(self, std::move(storage), 0, {size}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void resize_storage(const at::Tensor& tensor, int64_t size) {  // for UntypedStorage.resize_
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto made = allocator.on(tensor.device(), size);
  if (size && storage->nbytes()) std::memcpy(made.get(), storage->data(), std::min<size_t>(size, storage->nbytes()));
  storage->set_data_ptr_noswap(std::move(made));
  storage->set_nbytes(size);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  // The generic code of these would choose other kernels than the CPU's, and round differently.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

struct Timer final : c10d::Timer {  // DDP asks for one
  explicit Timer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

// ---- NCCL ---------------------------------------------------------------------------------------

using c10d::Work;
using Handle = c10::intrusive_ptr<Work>;
using Then = std::function<void()>;

// NCCL's types, as getNcclDataType lists them.
const std::set<at::ScalarType> TYPES{
    at::kChar, at::kByte, at::kBool, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble, at::kBFloat16,
    at::kFloat8_e5m2, at::kFloat8_e4m3fn};

// What each communicator was asked to do, in the order of this process. A test compares those of all ranks.
std::vector<std::string>& asked_for = *new std::vector<std::string>();
std::mutex asked_mutex;

std::string uuid(DeviceIndex index) {  // of a GPU, whose number depends on CUDA_VISIBLE_DEVICES
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return "GPU-" + std::to_string(index);
  std::istringstream names(visible);
  std::string name;
  for (int i = 0; i <= index; ++i) std::getline(names, name, ',');
  return "GPU-" + name;
}

struct GpuWork final : Work {
  std::vector<Handle> parts;
  Tensors outputs;
  Then then;
  std::once_flag once;

  GpuWork(std::vector<Handle> parts, Tensors outputs, Then then = {})
      : parts(std::move(parts)), outputs(std::move(outputs)), then(std::move(then)) {}
  void end() {
    std::call_once(once, [this] {
      if (then) then();
    });
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (auto& part : parts) part->wait(timeout);
    end();
    return true;
  }
  bool isCompleted() override {
    return std::all_of(parts.begin(), parts.end(), [](auto& part) { return part->isCompleted(); });
  }
  bool isSuccess() const override { return true; }
  void synchronize() override { wait(kNoTimeout); }
  Tensors result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<Device> devices{outputs.at(0).device()};
    auto type = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(type, devices);
    auto self = c10::intrusive_ptr<GpuWork>::unsafe_reclaim_from_nonowning(this);
    parts.at(0)->getFuture()->addCallback([self, future](c10::ivalue::Future& done) {
      if (done.hasError()) return future->setError(done.exception_ptr());
      self->end();
      future->markCompleted(IValue(self->outputs));
    });
    return future;
  }
};

struct NCCL final : c10d::Backend {
  struct Options final : c10d::Backend::Options {
    explicit Options(bool high) : c10d::Backend::Options("nccl", std::chrono::minutes(10)), high(high) {}
    bool high;
    int64_t split_color = 0;
  };

  c10::intrusive_ptr<c10d::Backend> gloo;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<Options> options;
  std::optional<Device> bound;
  std::string communicator;  // its name, once it is connected
  std::vector<Handle> coalesced;
  bool is_coalescing = false;

  NCCL(
      c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store,
      c10::intrusive_ptr<Options> options)
      : c10d::Backend(gloo->getRank(), gloo->getSize()),
        gloo(std::move(gloo)),
        store(std::move(store)),
        options(std::move(options)) {}

  // As ncclCommInitRank: no two ranks of a host on one GPU. NCCL_HOSTID says what a host is.
  void connect() {
    if (!communicator.empty()) return;
    char name[256] = "";
    gethostname(name, 255);
    const char* told = std::getenv("NCCL_HOSTID");
    auto key = [](int rank) { return "gpu of " + std::to_string(rank); };
    auto text = [this](const std::string& key) {
      store->wait({key}, options->timeout);
      auto bytes = store->get(key);
      return std::string(bytes.begin(), bytes.end());
    };
    auto own = std::string(told ? told : name) + " " + uuid(bound->index());
    store->set(key(getRank()), std::vector<uint8_t>(own.begin(), own.end()));
    if (getRank() == 0) {
      static int made = 0;
      auto id = std::to_string(getpid()) + "." + std::to_string(made++);
      store->set("communicator", std::vector<uint8_t>(id.begin(), id.end()));
    }
    for (int other = 0; other < getSize(); ++other) {
      if (other == getRank() || text(key(other)) != own) continue;
      TORCH_CHECK_WITH(
          DistBackendError, false,
          "NCCL error in: pretended, invalid usage, NCCL version 2.29.7\nncclInvalidUsage: This usually reflects "
          "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank ",
          getRank(), " and rank ", other, " both on CUDA device ", static_cast<int>(bound->index()));
    }
    communicator = text("communicator");
  }
  // For each collective. A message of two ranks alone connects only them, which is not looked at.
  void ask(const std::string& what, const at::Tensor& tensor, bool is_alike = true) {
    bool is_message = what == "message";
    if (!is_message || is_coalescing) connect();
    if (communicator.empty()) return;
    auto size = is_message || !is_alike ? "" : " of " + std::to_string(tensor.numel());
    std::lock_guard lock(asked_mutex);
    if (asked_for.size() >= 20000) return;
    asked_for.push_back(communicator + " " + what + size + " " + toString(tensor.scalar_type()));
  }

  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    options->timeout = timeout;
    gloo->setTimeout(timeout);
  }
  void eagerConnectSingleDevice(Device device) override {
    bound = device;
    connect();
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }
  void shutdown() override {}

  // What ProcessGroupNCCL refuses.
  at::Tensor cpu(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_cuda() && !tensor.is_sparse(), "Tensors must be CUDA and dense");
    TORCH_CHECK(tensor.is_contiguous() || tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
    TORCH_CHECK(TYPES.count(tensor.scalar_type()), "Unconvertible NCCL type ", tensor.scalar_type());
    if (!bound) bound = tensor.device();  // lazily: that of the first tensor
    TORCH_CHECK(
        tensor.device() == *bound, "Tensor found on device ", tensor.device(), " but backend constrained to ", *bound);
    return on_cpu(tensor);
  }
  template <class T>
  std::vector<T> cpu(const std::vector<T>& all) {
    std::vector<T> found;
    for (auto& each : all) found.push_back(cpu(each));
    return found;
  }
  Handle work(Handle part, Tensors outputs, Then then = {}) {
    auto made = c10::make_intrusive<GpuWork>(std::vector<Handle>{part}, std::move(outputs), std::move(then));
    if (is_coalescing) coalesced.push_back(made);
    return made;
  }
  void startCoalescing() override { is_coalescing = true; }
  Handle endCoalescing() override {
    is_coalescing = false;
    return c10::make_intrusive<GpuWork>(std::exchange(coalesced, {}), Tensors{});
  }
  // With a sum in place of an average, which gloo lacks: it is divided afterwards.
  template <class Asked, class Call>
  Handle reduced(Tensors outputs, Asked asked, Call call) {
    Then then;
    if (asked.reduceOp == c10d::ReduceOp::AVG) {
      asked.reduceOp = c10d::ReduceOp::SUM;
      then = [outputs, size = getSize()] {
        for (auto& each : outputs)
          at::isFloatingType(each.scalar_type()) ? on_cpu(each).div_(size) : on_cpu(each).div_(size, "trunc");
      };
    }
    return work(call(asked), outputs, then);
  }

  Handle broadcast(Tensors& tensors, const c10d::BroadcastOptions& asked) override {
    auto here = cpu(tensors);
    ask("broadcast from " + std::to_string(asked.rootRank), tensors.at(0));
    return work(gloo->broadcast(here, asked), tensors);
  }
  Handle allreduce(Tensors& tensors, const c10d::AllreduceOptions& asked) override {
    auto here = cpu(tensors);
    ask("all_reduce", tensors.at(0));
    return reduced(tensors, asked, [&](auto& own) { return gloo->allreduce(here, own); });
  }
  Handle reduce(Tensors& tensors, const c10d::ReduceOptions& asked) override {
    auto here = cpu(tensors);
    ask("reduce to " + std::to_string(asked.rootRank), tensors.at(0));
    return work(gloo->reduce(here, asked), tensors);
  }
  Handle allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& asked) override {
    auto to = cpu(outputs);
    auto from = cpu(inputs);
    ask("all_gather", inputs.at(0));
    return work(gloo->allgather(to, from, asked), outputs.at(0));
  }
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& asked) override {
    TORCH_CHECK(input.scalar_type() == output.scalar_type(), "output tensor must have the same type as input tensor");
    auto to = cpu(output).view(-1), from = cpu(input).view(-1);  // NCCL sees no shapes
    ask("all_gather", input);
    return work(gloo->_allgather_base(to, from, asked), {output});
  }
  Handle allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& asked) override {
    auto to = cpu(outputs), from = cpu(inputs);
    for (auto& each : inputs) ask("all_gather", each);
    return work(gloo->allgather_into_tensor_coalesced(to, from, asked), outputs);
  }
  Handle gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& asked) override {
    auto to = cpu(outputs);
    auto from = cpu(inputs);
    ask("gather to " + std::to_string(asked.rootRank), inputs.at(0));
    return work(gloo->gather(to, from, asked), outputs.empty() ? inputs : outputs.at(0));
  }
  Handle scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& asked) override {
    auto to = cpu(outputs);
    auto from = cpu(inputs);
    ask("scatter from " + std::to_string(asked.rootRank), outputs.at(0));
    return work(gloo->scatter(to, from, asked), outputs);
  }
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& asked) override {
    auto to = cpu(output).view(-1), from = cpu(input).view(-1);
    ask("reduce_scatter", output);
    return reduced({output}, asked, [&](auto& own) { return gloo->_reduce_scatter_base(to, from, own); });
  }
  Handle reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& asked) override {
    auto to = cpu(outputs), from = cpu(inputs);
    for (auto& each : outputs) ask("reduce_scatter", each);
    return reduced(outputs, asked, [&](auto& own) { return gloo->reduce_scatter_tensor_coalesced(to, from, own); });
  }
  Handle alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to_sizes, std::vector<int64_t>& from_sizes,
      const c10d::AllToAllOptions& asked) override {
    auto to = cpu(output), from = cpu(input);
    ask("all_to_all", input, from_sizes.empty());
    return work(gloo->alltoall_base(to, from, to_sizes, from_sizes, asked), {output});
  }
  Handle send(Tensors& tensors, int to, int tag) override {
    auto here = cpu(tensors);
    ask("message", tensors.at(0));
    return work(gloo->send(here, to, tag), tensors);
  }
  Handle recv(Tensors& tensors, int from, int tag) override {
    auto here = cpu(tensors);
    ask("message", tensors.at(0));
    return work(gloo->recv(here, from, tag), tensors);
  }
  Handle barrier(const c10d::BarrierOptions&) override {
    wait_is_seen("barrier");
    return work(gloo->barrier(c10d::BarrierOptions()), {});
  }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& asked) override {
    auto own = c10::dynamic_intrusive_pointer_cast<Options>(asked);
    TORCH_CHECK(own, "opts not a ProcessGroupNCCL::Options.");
    TORCH_CHECK(bound, "ProcessGroupNCCL::split: no device is bound to this rank.");
    auto theirs = gloo->getBackendOptions();  // gloo's own: the wheel has no headers to make others
    theirs->timeout = own->timeout;
    theirs->group_name = own->group_name;
    auto part = gloo->split(store, ranks, theirs);
    if (!part) return nullptr;
    auto made = c10::make_intrusive<NCCL>(part, store, own);
    made->bound = bound;
    made->communicator = communicator + "/" + own->group_name;
    return made;
  }
};

struct Refusing final : c10d::Backend {  // for a GPU's tensors in a group of gloo: supports no collective
  using c10d::Backend::Backend;
  const std::string getBackendName() const override { return "gloo, given a tensor of a GPU,"; }
};

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::Timer)
}

PYBIND11_MODULE(pretend_cuda, m) {
  py::module_::import("torch.distributed");  // which declares the base classes
  m.def("listen", [](py::object each) { listener = each.release().ptr(); });
  m.def("gpus", &gpus);
  m.def("uuid", [](int index) { return uuid(static_cast<DeviceIndex>(index)); });
  m.def("wait", &wait_is_seen);
  m.def("memory", [](int index) { return std::pair<int64_t, int64_t>(memory.at(index).now, memory.at(index).most); });
  m.def("reset_peak", [](int index) { memory.at(index).most = memory.at(index).now.load(); });
  m.def("operations", [] { return asked_for; });
  m.def("resize_storage", &resize_storage);
  m.def("generator", [](int index) { return generator(static_cast<DeviceIndex>(index)); });
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("set_device", [](int index) { Guard().setDevice(Device(CUDA, static_cast<DeviceIndex>(index))); });
  py::class_<Refusing, c10::intrusive_ptr<Refusing>, c10d::Backend>(m, "Refusing")
      .def(py::init([](int rank, int size) { return c10::make_intrusive<Refusing>(rank, size); }));
  using Options = NCCL::Options;
  py::class_<NCCL, c10::intrusive_ptr<NCCL>, c10d::Backend> nccl(m, "ProcessGroupNCCL");
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(nccl, "Options")
      .def(
          py::init([](bool high) { return c10::make_intrusive<Options>(high); }),
          py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::high)
      .def_readwrite("split_color", &Options::split_color)
      .def_property("split_from", [](Options&) { return py::none(); }, [](Options&, py::object) {})
      .def_readwrite("global_ranks_in_group", &Options::global_ranks_in_group)
      .def_readwrite("group_name", &Options::group_name)
      .def("__deepcopy__", [](Options& self, py::dict) { return c10::make_intrusive<Options>(self); });
  nccl.def(py::init([](c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store,
                       c10::intrusive_ptr<Options> options) {
        return c10::make_intrusive<NCCL>(gloo, store, options);
      }))
      .def_property_readonly("options", [](NCCL& self) { return self.options; })
      .def("perform_nocolor_split", [](NCCL&, Device) {})
      .def("_set_default_timeout", [](NCCL& self, std::chrono::milliseconds limit) { self.setTimeout(limit); });
}
