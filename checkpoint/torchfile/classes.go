package torchfile

import (
	"errors"
	"math"
	"slices"
	"strings"

	"zeroth/checkpoint/safetensors"
)

// classes lists, by module, the classes whose instances become data. DeepSpeed, FSDP and
// torch.distributed.checkpoint use them.
var classes = map[string]string{
	"torch":                                    "Size device Tensor",
	"torch.nn.parameter":                       "Parameter",
	"collections":                              "OrderedDict",
	"pathlib":                                  "PosixPath PurePosixPath",
	"deepspeed.runtime.zero.config":            "ZeroStageEnum",
	"deepspeed.runtime.fp16.loss_scaler":       "LossScaler DynamicLossScaler",
	"deepspeed.utils.tensor_fragment":          "fragment_address",
	"torch.distributed.checkpoint.metadata":    "Metadata TensorStorageMetadata BytesStorageMetadata TensorProperties ChunkStorageMetadata MetadataIndex StorageMeta _MEM_FORMAT_ENCODING",
	"torch.distributed.checkpoint.filesystem":  "_StorageInfo",
	"torch.distributed.tensor":                 "DTensor",
	"torch.distributed.tensor._dtensor_spec":   "DTensorSpec TensorMeta ShardOrderEntry",
	"torch.distributed.tensor.placement_types": "Shard Replicate Partial _StridedShard",
	"torch.distributed.device_mesh":            "DeviceMesh",
	"torch.distributed._mesh_layout":           "_MeshLayout _FlatLayout",

	"torch.distributed._shard.sharded_tensor.api":                "ShardedTensor",
	"torch.distributed._shard.sharded_tensor.shard":              "Shard",
	"torch.distributed._shard.sharded_tensor.metadata":           "ShardedTensorMetadata TensorProperties MEM_FORMAT_ENCODING",
	"torch.distributed._shard.metadata":                          "ShardMetadata",
	"torch.distributed._shard.sharding_spec.chunk_sharding_spec": "ChunkShardingSpec",
	"torch.distributed._shard.sharding_spec.api":                 "EnumerableShardingSpec",
	"torch.distributed.remote_device":                            "_remote_device",
	"torch.distributed._shard.sharded_tensor":                    "ShardedTensor Shard ShardedTensorMetadata TensorProperties",
	"torch.distributed._shard.sharding_spec":                     "ChunkShardingSpec EnumerableShardingSpec ShardMetadata",
}

// function returns the reader's implementation of a function by name, or nil.
func function(name string) func(p *machine, args Tuple) any {
	switch name {
	case "collections.OrderedDict":
		return func(*machine, Tuple) any { return &Dict{} }
	case "__builtin__.set", "builtins.set":
		return makeList
	case "__builtin__.getattr", "builtins.getattr":
		return member
	case "torch.Size":
		return makeTuple
	case "torch.serialization._get_layout", "deepspeed.runtime.zero.config.ZeroStageEnum", "torch._utils._rebuild_parameter":
		return first
	case "pathlib.PosixPath", "pathlib.PurePosixPath":
		return joinPath
	case "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3":
		return rebuild
	case "torch._utils._rebuild_wrapper_subclass":
		return wrapper
	case "torch._tensor._rebuild_from_type_v2":
		return rebuildFromType
	}
	return nil
}

// storages maps storage classes to element types.
var storages = map[string]safetensors.DType{
	"FloatStorage": "F32", "BFloat16Storage": "BF16", "HalfStorage": "F16", "DoubleStorage": "F64",
	"LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
	"UntypedStorage": "U8",
}

// dtypes maps PyTorch's names to element types.
var dtypes = map[string]safetensors.DType{
	"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
	"uint8": "U8", "bool": "BOOL", "uint16": "U16", "uint32": "U32", "uint64": "U64",
	"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}

// DTypeOf returns the element type named by a value of a pickle, such as torch.float32.
func DTypeOf(v any) (safetensors.DType, bool) {
	g, ok := v.(Global)
	t, known := dtypes[g.Name]
	return t, ok && known && g.Module == "torch"
}

// allowed reports whether a global may be in a file.
func allowed(g Global) bool {
	if function(g.String()) != nil || slices.Contains(strings.Fields(classes[g.Module]), g.Name) {
		return true
	}
	_, dtype := dtypes[g.Name]
	_, storage := storages[g.Name]
	return g.Module == "torch" && (dtype || storage) || g.Module == "torch.storage" && g.Name == "UntypedStorage"
}

// isClass reports whether instances of a global become an Object.
func isClass(g Global) bool { return slices.Contains(strings.Fields(classes[g.Module]), g.Name) }

var errArgs = errors.New("arguments of an unknown form")

func first(_ *machine, args Tuple) any {
	if len(args) == 0 {
		must(errArgs)
	}
	return args[0]
}

func makeList(p *machine, args Tuple) any {
	items := makeTuple(p, args).(Tuple)
	return &List{slices.Clone(items), inner{weight: p.weigh(items...)}}
}

func makeTuple(p *machine, args Tuple) any {
	if len(args) == 0 {
		return Tuple{}
	}
	items := Items(args[0])
	if items == nil && !isEmpty(args[0]) {
		must(errArgs)
	}
	return p.tuple(items)
}

// isEmpty reports whether a value is a list or a tuple, with or without elements.
func isEmpty(v any) bool {
	switch v.(type) {
	case Tuple, *List:
		return true
	}
	return false
}

// member implements getattr for one of the enumerations in classes.
func member(_ *machine, args Tuple) any {
	if len(args) == 2 {
		class, ok := args[0].(Global)
		name, text := args[1].(string)
		if ok && text && isClass(class) && strings.Contains(class.Name, "FORMAT") {
			return name
		}
	}
	fail("getattr of something other than an enumeration")
	return nil
}

func joinPath(p *machine, args Tuple) any {
	var parts []string
	n := 0
	for _, a := range args {
		s, ok := a.(string)
		if n += len(s) + 1; !ok || n > 4096 {
			must(errArgs)
		}
		parts = append(parts, s)
	}
	p.take(int64(n))
	return strings.Join(parts, "/")
}

// rebuild implements _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[,
// metadata]), and v3, where the seventh argument is the element type.
func rebuild(p *machine, args Tuple) any {
	if len(args) < 4 {
		must(errArgs)
	}
	s, ok := args[0].(*Storage)
	offset, number := args[1].(int64)
	if !ok || !number {
		must(errArgs)
	}
	shape, err := Ints(args[2])
	must(err)
	stride, err := Ints(args[3])
	must(err)
	t := &Tensor{Storage: s, Offset: offset, Shape: shape, Stride: stride, DType: s.DType}
	if s.untyped {
		if len(args) < 7 {
			must(errArgs)
		}
		if t.DType, ok = DTypeOf(args[6]); !ok {
			fail("elements of type %s", Kind(args[6]))
		}
	}
	p.take(objectCost + 16*int64(len(shape)))
	must(t.check())
	return t
}

// wrapper implements _rebuild_wrapper_subclass(class, dtype, size, …); the instance's fields follow
// as state.
func wrapper(p *machine, args Tuple) any {
	g, ok := first(nil, args).(Global)
	if !ok || !isClass(g) {
		must(errArgs)
	}
	return p.object(g, args[1:], nil)
}

// rebuildFromType implements (func, type, args, state) → func(*args) with the state.
func rebuildFromType(p *machine, args Tuple) any {
	if len(args) != 4 {
		must(errArgs)
	}
	f, ok := args[0].(Global)
	class, named := args[1].(Global)
	with, tuple := args[2].(Tuple)
	if !ok || !tuple || !named || f.Name == "_rebuild_from_type_v2" {
		must(errArgs)
	}
	v := p.call(f, with)
	if o, ok := v.(*Object); ok {
		v = p.object(class, o.Args, args[3])
	}
	if class.Name == "ShardedTensor" {
		v = p.object(class, with, args[3])
	}
	return v
}

// maxDims is the maximum number of dimensions of a tensor.
const maxDims = 64

// product returns the number of elements of a shape, or false if it is negative or overflows.
func product(shape []int) (int, bool) {
	n, ok := safetensors.Numel(shape)
	return n, ok && n < math.MaxInt/16
}

// TypeName returns PyTorch's name of an element type, such as float32.
func TypeName(t safetensors.DType) string {
	for name, dtype := range dtypes {
		if dtype == t {
			return name
		}
	}
	return ""
}
