package client

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"tendril/ipc"
	"tendril/ipc/wire"
	"tendril/store/object"
	"tendril/tools/e2e/answers"
)

// TestLimitIsNotWaitedFor: what a tenant may have no more of is no memory that others are about to unmap: such a
// refusal is the answer, at once. A daemon of protocol version 1 has one code for both.
func TestLimitIsNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		version uint16
		code    object.Code
		want    error
		asked   bool // more than once
	}{
		"a limit":                      {2, 16, object.ErrLimit, false},
		"memory":                       {2, 8, object.ErrQuota, true},
		"either, said by an older one": {1, 8, object.ErrQuota, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := answers.New(t, test.version, func(kind wire.Type, _ int) (wire.Type, ipc.Payload) {
				switch kind {
				case wire.Sweep:
					return kind | wire.ReplyBit, &wire.SweepReply{}
				case wire.Status:
					return kind | wire.ReplyBit, answers.Raw(`{}`)
				}
				return wire.Error, &wire.ErrorReply{Code: test.code, Text: "no more"}
			})
			c, err := Dial(context.Background(), Options{Socket: d.Socket})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, createErr := c.Create(context.Background(), 5, CreateOptions{})
			_, getErr := c.GetByName(context.Background(), "x", 0) // of an object on disk
			for _, err := range []error{createErr, getErr} {
				if !errors.Is(err, test.want) || !errors.Is(err, object.ErrQuota) {
					t.Errorf("%v, want %v", err, test.want)
				}
			}
			again := d.Count(wire.Sweep)+d.Count(wire.Status) > 0
			if again != test.asked || d.Count(wire.Create) > 1 != test.asked || d.Count(wire.Get) > 1 != test.asked {
				t.Errorf("asked again: %v, want %v: %v", again, test.asked, d.Came())
			}
		})
	}
}

// TestOnlyOnesOwnMemoryHelpsAQuota: who was refused memory goes on asking while some is on its way back that would
// help: anybody's where the store is full, the tenant's own where its quota is used up. So others, who need only keep
// what they should give back, delay no refusal.
func TestOnlyOnesOwnMemoryHelpsAQuota(t *testing.T) {
	const enough = 7 // requests: more than are made without asking what leaves
	for name, test := range map[string]struct {
		code   object.Code
		status string
		goesOn bool
	}{
		"quota, others' memory":        {8, `{"store":{"leaving_bytes":5,"tenant_leaving_bytes":0}}`, false},
		"quota, own memory":            {8, `{"store":{"leaving_bytes":5,"tenant_leaving_bytes":5}}`, true},
		"quota, an older daemon":       {8, `{"store":{"leaving_bytes":5}}`, true},
		"quota, an older one, nothing": {8, `{"store":{"leaving_bytes":0}}`, false},
		"full, others' memory":         {7, `{"store":{"leaving_bytes":5,"tenant_leaving_bytes":0}}`, true},
		"full, nothing":                {7, `{"store":{"leaving_bytes":0,"tenant_leaving_bytes":0}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := answers.New(t, wire.Version, func(kind wire.Type, nth int) (wire.Type, ipc.Payload) {
				switch {
				case kind == wire.Sweep:
					return kind | wire.ReplyBit, &wire.SweepReply{}
				case kind == wire.Status:
					return kind | wire.ReplyBit, answers.Raw(test.status)
				case nth > enough:
					return wire.Error, &wire.ErrorReply{Code: object.ErrInvalid.Code(), Text: "enough"}
				}
				return wire.Error, &wire.ErrorReply{Code: test.code, Text: "no more"}
			})
			c, err := Dial(context.Background(), Options{Socket: d.Socket})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Create(context.Background(), 5, CreateOptions{})
			if goesOn := errors.Is(err, object.ErrInvalid); goesOn != test.goesOn || d.Count(wire.Status) == 0 {
				t.Errorf("went on: %v, want %v: %v: %v", goesOn, test.goesOn, err, d.Came())
			}
		})
	}
}

// Each get makes an Object. The allocator's next class has 160 bytes.
func TestObjectIsSmall(t *testing.T) {
	if n := reflect.TypeFor[Object]().Size(); n > 144 {
		t.Errorf("an Object takes %d bytes", n)
	}
}
