package span

import "tendril/forwarding/session"

// A context that spans platforms has no images: they are opaque to their driver, so that no range of one could be moved
// between members. It says so where a program asks (no formats), and where it does not.

// CreateImage is clCreateImage; session's, but in contexts that span.
func (d *Driver) CreateImage(context uintptr, given []uint64, flags uint64, format *session.ImageFormat, desc *session.ImageDesc, host session.HostPtr) (uintptr, session.Status) {
	if d.contexts.Get(context) != nil {
		return 0, session.ImageFormatNotSupported
	}
	return d.Driver.CreateImage(context, given, flags, format, desc, host)
}

// ImageFormats is clGetSupportedImageFormats.
func (d *Driver) ImageFormats(context uintptr, flags uint64, kind uint32) ([]session.ImageFormat, session.Status) {
	if d.contexts.Get(context) != nil {
		return nil, session.Success
	}
	return d.Driver.ImageFormats(context, flags, kind)
}

// CreateSampler is clCreateSampler.
func (d *Driver) CreateSampler(context uintptr, normalized, addressing, filter uint32) (uintptr, session.Status) {
	if d.contexts.Get(context) != nil {
		return 0, session.InvalidOperation
	}
	return d.Driver.CreateSampler(context, normalized, addressing, filter)
}

// CreateSamplerWithProperties is clCreateSamplerWithProperties.
func (d *Driver) CreateSamplerWithProperties(context uintptr, given []uint64) (uintptr, session.Status) {
	if d.contexts.Get(context) != nil {
		return 0, session.InvalidOperation
	}
	return d.Driver.CreateSamplerWithProperties(context, given)
}
