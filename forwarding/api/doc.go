// Package api is OpenCL as a Go interface: one method for each entry point, and the types of their arguments.
//
// Package icd turns C calls into calls of a Driver. Package session implements it over one worker a context; package
// span implements it over a Base, which is a Driver with what a context over several others needs besides. Neither
// knows the other, so that each is tested alone: span over a Base that is a model in memory.
//
// Handles are numbers that the implementation gave out, or that a program made up: every method answers an unknown one
// with the code of OpenCL 3.0 for it. Unless a method says otherwise it may be called concurrently, also from
// callbacks.
//
// Trust: pointers are the program's (HostPtr). No locks; nothing here has state.
package api
