//go:build !amd64

package segment

func copyStream(dst, src []byte) { copy(dst, src) }
