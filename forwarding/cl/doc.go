// Package cl holds OpenCL's numbers: every constant of CL/cl.h and CL/cl_ext.h, generated from Debian's opencl-headers.
// The same generator fills the dispatch table of package icd.
//
// A name is the specification's with a dot for the first underscore: CL_DEVICE_NAME is cl.DEVICE_NAME, as package unix
// writes C's names. Whoever reads a line finds the name in the specification, and whoever comes from there finds the
// line with grep; no table of initialisms stands between the two (is it DeviceIlVersion?). All are untyped, because the
// headers give one number to cl_int, cl_uint, cl_bitfield and cl_properties alike. An error code is negative, so that
// the compiler refuses it where a parameter or a flag is meant.
package cl

//go:generate go run ./gen
