package wire

import "tendril/store/object"

// CreateDeviceRequest asks for an object to fill in the memory of a GPU.
//
//wire:payload CreateDevice
type CreateDeviceRequest struct {
	SizeBytes uint64
	Device    object.Device
	Class     object.Class
	Name      string
	Meta      []byte
	TTLMS     uint64 // class ttl: ms from Seal on
	Labels    map[string]string
}

// DeviceReply says what an object in the memory of a GPU is; the descriptor of its allocation comes with it.
//
//wire:payload re CreateDevice GetDevice
type DeviceReply struct {
	ID        object.ID
	Device    object.Device
	SizeBytes uint64
	Bytes     uint64 // of the allocation: what is to be mapped
	Class     object.Class
	Meta      []byte
}

// CopyRequest copies bytes of a sealed object, by name where From is zero, into an unsealed one of this connection. One
// of them at least is in the memory of a GPU.
//
//wire:payload CopyObject
type CopyRequest struct {
	To         object.ID
	ToOffset   uint64
	From       object.ID
	FromName   string
	FromOffset uint64
	Bytes      uint64
}

// SealDeviceRequest seals an object in the memory of a GPU, with other metadata than it was created with: whoever
// allocates memory before it knows what will be in it.
//
//wire:payload SealDevice
type SealDeviceRequest struct {
	ID   object.ID
	Meta []byte
}

// IPCReply is a copy of an object in the memory of a GPU, which is lent to programs that open a CUDA handle.
//
//wire:payload re IPCHandle
type IPCReply struct {
	Number    uint64 // this connection's, for CloseIPC
	Device    object.Device
	SizeBytes uint64 // of the object
	Bytes     uint64 // of the copy
	Handle    [64]byte
}
