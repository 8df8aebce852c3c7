package object

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
)

// Device names a device whose memory objects may lie in: its UUID, which drivers and other programs agree on. The zero
// Device is none.
type Device [16]byte

// IPCHandleBytes is the size of a CUDA IPC handle (CUipcMemHandle, cudaIpcMemHandle_t).
const IPCHandleBytes = 64

// ParseDevice reads a UUID: 32 hexadecimal digits, with hyphens or without, and with "GPU-" before them or not.
// Anything else is ErrInvalid.
func ParseDevice(s string) (d Device, err error) {
	digits := strings.ReplaceAll(strings.TrimPrefix(s, "GPU-"), "-", "")
	if len(digits) == 2*len(d) {
		_, err = hex.Decode(d[:], []byte(digits))
	}
	if len(digits) != 2*len(d) || err != nil || d.IsZero() {
		return Device{}, fmt.Errorf("%w: device %.60q: want a UUID of 32 hexadecimal digits", ErrInvalid, s)
	}
	return d, nil
}

// IsZero reports whether d is no device.
func (d Device) IsZero() bool { return d == Device{} }

// Compare orders devices.
func (d Device) Compare(other Device) int { return bytes.Compare(d[:], other[:]) }

// String gives 32 hexadecimal digits, as `tendril devices` shows them.
func (d Device) String() string { return hex.EncodeToString(d[:]) }

// MarshalText makes a Device a JSON string; the zero one is empty.
func (d Device) MarshalText() ([]byte, error) {
	if d.IsZero() {
		return nil, nil
	}
	return []byte(d.String()), nil
}

// UnmarshalText is the reverse of MarshalText.
func (d *Device) UnmarshalText(b []byte) (err error) {
	*d = Device{}
	if len(b) > 0 {
		*d, err = ParseDevice(string(b))
	}
	return err
}
