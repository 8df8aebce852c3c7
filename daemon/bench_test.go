package daemon

import (
	"context"
	"testing"

	"tendril/client"
	"tendril/client/admin"
	"tendril/client/login"
)

// benchmarkDaemon starts a daemon that nothing is checked of.
func benchmarkDaemon(b *testing.B) (*Daemon, Config) {
	c := aConfig(b)
	d := newDaemon(b, c)
	ctx, cancel := context.WithCancel(context.Background())
	up, down := make(chan struct{}), make(chan error, 1)
	d.OnReady(func() { close(up) })
	go func() { down <- d.Run(ctx) }()
	<-up
	b.Cleanup(func() { cancel(); <-down })
	return d, c
}

// BenchmarkPublish replaces a published object by the next; one append to the log each, with one fsync.
func BenchmarkPublish(b *testing.B) {
	_, c := benchmarkDaemon(b)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	var objects [2]*client.Object
	for i := range objects {
		buf, err := conn.Create(context.Background(), 64, client.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if objects[i], err = buf.Seal(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		if _, err := conn.Publish(context.Background(), objects[i%2].ID(), "name", true); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect opens a connection and says Hello.
func BenchmarkConnect(b *testing.B) {
	b.Setenv("TENDRIL_CREDENTIALS", b.TempDir())
	d, c := benchmarkDaemon(b)
	conn, err := client.Dial(context.Background(), client.Options{Socket: c.Socket})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	token := newToken(b, conn, admin.TokenOptions{})
	at := d.door.Load().RemoteAddr().String()
	if _, err := login.Login(context.Background(), at, token, ""); err != nil {
		b.Fatal(err)
	}
	b.Run("path=unix", func(b *testing.B) {
		for b.Loop() {
			connect(b, func() (*client.Conn, error) {
				return client.Dial(context.Background(), client.Options{Socket: c.Socket})
			})
		}
	})
	b.Run("path=tls", func(b *testing.B) {
		for b.Loop() {
			connect(b, func() (*client.Conn, error) {
				return client.DialServer(context.Background(), at, client.Options{})
			})
		}
	})
}

func connect(b *testing.B, dial func() (*client.Conn, error)) {
	conn, err := dial()
	if err != nil {
		b.Fatal(err)
	}
	conn.Close()
}

// BenchmarkEndLeases ends the records of 1,000 leases over nodes at once.
func BenchmarkEndLeases(b *testing.B) {
	d, _ := benchmarkDaemon(b)
	for b.Loop() {
		b.StopTimer()
		ids := putRecords(b, d, 1000)
		letRecordsEnd(d, ids)
		b.StartTimer()
		for len(d.wishes.due()) > 0 { // tendLeases may have them under way
			d.endRecords()
		}
	}
}
