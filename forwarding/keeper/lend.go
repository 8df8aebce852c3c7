package keeper

import (
	"encoding/hex"
	"errors"
	"fmt"

	"tendril/forwarding/clwire"
	"tendril/forwarding/cuda"
)

// What is lent is all that is lost with this process: the driver has no descriptor of such memory, so it ends with the
// process. The daemon lets no keeper rest that has lent some.

// leastLent is of what the size of memory that is lent is a multiple: the driver cuts smaller allocations out of one
// block, and a handle opens all of that, other tenants' memory with it.
const leastLent = 2 << 20

// lend copies memory of a device, behind fd, into memory of this process's own and gives the handle of that.
func (k *keeper) lend(m *clwire.KeeperLend, fd int) (handle string, bytes uint64, err error) {
	if k.lent[m.ID] != nil || m.From.Device == "" {
		return "", 0, fmt.Errorf("memory %d is lent twice, or is not a device's", m.ID)
	}
	var from place
	if err := k.mapDevice(&from, m.From, fd); err != nil {
		return "", 0, err
	}
	granule, err := from.context.Granularity()
	granule = max(granule, leastLent)
	if bytes = (m.Bytes + granule - 1) &^ (granule - 1); err == nil && (bytes < m.Bytes || bytes == 0) {
		err = fmt.Errorf("%d bytes to be lent", m.Bytes)
	}
	if err == nil {
		handle, bytes, err = k.lendCopy(m, from, bytes)
	}
	return handle, bytes, errors.Join(err, from.free())
}

// lendCopy is lend of what is mapped. Where the device is full, bytes is what is free.
func (k *keeper) lendCopy(m *clwire.KeeperLend, from place, bytes uint64) (string, uint64, error) {
	var own *cuda.Owned
	err := k.withRoom(from.context, func() (err error) {
		own, err = from.context.Own(bytes)
		return err
	})
	if err != nil {
		free := uint64(0)
		if sortOf(err) == clwire.KeeperFull {
			free, _ = from.context.FreeBytes() // 0 where the driver does not say
		}
		return "", free, err
	}
	var handle [cuda.HandleBytes]byte
	if err = own.Fill(0, m.Bytes, bytes-m.Bytes); err == nil { // what was there before is not to be seen
		err = own.CopyFrom(0, from.device, m.From.Offset, m.Bytes)
	}
	if err == nil {
		handle, err = own.Handle()
		if drivers := (*cuda.Error)(nil); errors.As(err, &drivers) && drivers.Code == cuda.NotSupported {
			err = &fault{clwire.KeeperNoDevice, "its driver gives no CUDA handle of it: " + err.Error()}
		}
	}
	if err != nil {
		return "", 0, errors.Join(err, own.Free())
	}
	k.lent[m.ID] = own
	return hex.EncodeToString(handle[:]), bytes, nil
}

// free gives back what was lent.
func (k *keeper) free(ids []uint64) (err error) {
	for _, id := range ids {
		if own := k.lent[id]; own != nil {
			delete(k.lent, id)
			err = errors.Join(err, own.Free())
		}
	}
	return err
}
