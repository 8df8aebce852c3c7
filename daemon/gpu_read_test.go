package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"tendril/client"
	"tendril/forwarding/cuda/fakecuda"
	"tendril/store/object"
	"tendril/tools/e2e/await"
)

// Objects of a GPU are read as any other by who has no GPU: over the socket, by HTTP with ranges, and summed; in the
// GPU's memory, away from it in host memory, and on disk. Nothing of the copies stays, also where the keeper is killed
// in between.
func TestReadsOfObjectsOfAGPU(t *testing.T) {
	const many, size = 8, 3<<20 + 7
	t.Setenv("CUDA_FAKE_BYTES", fmt.Sprint(8<<20))
	c := aConfig(t)
	c.CUDADriver, c.HTTP = fakecuda.Build(t), "127.0.0.1:0"
	c.CapacityBytes, c.QuotaBytes, c.PinBytes = 18<<20, 18<<20, 4<<20 // six in host memory are too many
	d, stop := serve(t, c)
	defer stop()
	conn, gpu := dialGPU(t, c.Socket)
	defer conn.Close()
	bg := context.Background()
	secret := pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant})
	ids := make([]object.ID, many)
	for i := range ids {
		obj := putOnGPU(t, conn, gpu, string(noise(uint64(i), size)), client.CreateOptions{Name: fmt.Sprint(i),
			Class: object.Named})
		ids[i] = obj.ID()
		obj.Release()
	}
	st := d.store.Status()
	if len(st.Devices) != 1 || st.Devices[0].Objects == 0 || st.Devices[0].AwayObjects <= st.SpilledObjects ||
		st.SpilledObjects == 0 {
		t.Fatalf("not everywhere: %d on disk, %+v", st.SpilledObjects, st.Devices)
	}
	now := func() string {
		st := d.store.Status()
		return fmt.Sprintf("%+v, %d objects, %d open, %d references, %d connections", st.Devices, st.Objects, st.OpenObjects,
			st.References, st.Connections)
	}
	await.Until(t, "the last release has come", func() bool { return d.store.Status().References == 0 })
	before := now()
	for i, id := range ids {
		want := noise(uint64(i), size)
		if pid := d.keeper.Status().PID; pid > 0 && i == many-2 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if sum, err := conn.Checksum(bg, id); err != nil || sum != xxhash.Sum64(want) {
			t.Errorf("object %d has the checksum %x: %v", i, sum, err)
		}
		part := make([]byte, size/2)
		if err := conn.ReadAt(bg, id, part, 11); err != nil || !bytes.Equal(part, want[11:][:len(part)]) {
			t.Errorf("object %d, a range of it: %v", i, err)
		}
		r, err := conn.Open(bg, object.ID{}, fmt.Sprint(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		var whole bytes.Buffer
		if err := r.CopyRange(bg, &whole, 0, size); err != nil || !bytes.Equal(whole.Bytes(), want) {
			t.Errorf("object %d: %d bytes, %v", i, whole.Len(), err)
		}
		r.Close()
		path := "/v1/objects/" + id.String() + "/data"
		if status, body, _ := asked(t, d, path, secret); status != http.StatusOK || body != string(want) {
			t.Errorf("object %d by HTTP: %d, %d bytes", i, status, len(body))
		}
		status, body, answer := asked(t, d, path, secret, "Range", "bytes=1048570-2097160")
		if status != http.StatusPartialContent || body != string(want[1048570:2097161]) ||
			answer.Header.Get("Content-Range") != fmt.Sprintf("bytes 1048570-2097160/%d", size) {
			t.Errorf("object %d, a range by HTTP: %d, %d bytes, %v", i, status, len(body), answer.Header)
		}
	}
	await.Until(t, "it is as before ("+before+")", func() bool { return now() == before })
}

// A driver that fails is an error of the answer, and not an answer that breaks off.
func TestReadsOfAGPUThatFails(t *testing.T) {
	c := aConfig(t)
	c.CUDADriver, c.HTTP = fakecuda.Build(t), "127.0.0.1:0"
	c.CapacityBytes, c.QuotaBytes = 32<<20, 1<<20
	d, stop := serve(t, c)
	defer stop()
	conn, gpu := dialGPU(t, c.Socket)
	defer conn.Close()
	obj := putOnGPU(t, conn, gpu, string(noise(1, 2<<20)), client.CreateOptions{})
	defer obj.Release()
	path := "/v1/objects/" + obj.ID().String() + "/data"
	secret := pageKeyOf(t, d, pageKey{tenant: conn.Daemon().Tenant})
	status, body, answer := asked(t, d, path, secret) // there is no room for a chunk beside the records
	if status != http.StatusTooManyRequests || answer.Header.Get("ETag") != "" {
		t.Errorf("%d, %.200q, %v", status, body, answer.Header)
	}
	status, body, _ = asked(t, d, path, secret, "Range", "bytes=5-104")
	if status != http.StatusPartialContent || body != string(noise(1, 2<<20)[5:105]) {
		t.Errorf("what there is room for: %d, %d bytes", status, len(body))
	}
}
