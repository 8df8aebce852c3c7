package session

import "golang.org/x/sys/unix"

// The fakes' workers sleep on an eventfd while chunks may come by lanes.

func eventFD() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK) }

func poke(fd int) { _, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func unpoke(fd int) { _, _ = unix.Read(fd, make([]byte, 8)) }
