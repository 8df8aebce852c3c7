package main

// void tdl_free_standard(void);
import "C"

import "time"

// init runs when the library is loaded. The C half has taken those of the descriptors 0 to 2 that the program has
// closed (stubs.c), so that what Go's runtime keeps open does not land there: files that the program opens may.
func init() {
	// The first timer starts the runtime's poller, the last to want descriptors.
	time.AfterFunc(time.Hour, func() {}).Stop()
	C.tdl_free_standard()
}
