package inspect

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

type dict = map[string]any

// openAPI describes every path (OpenAPI 3.1.0), from the table of routes and the types of their answers.
func openAPI() any {
	paths := dict{}
	for _, r := range routes {
		paths[r.path] = dict{"get": operation(r)}
	}
	return dict{
		"openapi": "3.1.0",
		"info": dict{"title": "Tendril inspection", "version": "1",
			"description": "What a node is doing. Fields are added, never renamed; sizes are bytes, times RFC 3339."},
		"paths": paths,
		"components": dict{
			"schemas":         dict{"Problem": schemaOf(reflect.TypeFor[failure]())},
			"securitySchemes": dict{"bearer": dict{"type": "http", "scheme": "bearer"}},
		},
		"security": []dict{{"bearer": []string{}}},
	}
}

func operation(r route) dict {
	good := dict{"description": r.what}
	var schema any
	switch {
	case r.of != nil && r.listed:
		schema = dict{"type": "object", "required": []string{"items"}, "properties": dict{
			"items": dict{"type": "array", "items": schemaOf(reflect.TypeOf(r.of))},
			"next":  dict{"type": "string"},
			"total": dict{"type": "integer",
				"description": "How many there are on all pages: of objects, where neither prefix nor state chooses them."},
			"silent": dict{"type": "array", "items": dict{"type": "string"},
				"description": "Nodes that did not answer."},
			"unsure": dict{"type": "string",
				"description": "Of names: why this node may know less than its cluster, which does not answer it."},
		}}
	case r.of != nil:
		schema = schemaOf(reflect.TypeOf(r.of))
	}
	if schema != nil && r.stream {
		good["content"] = dict{eventsType: dict{"schema": dict{"type": "string", "contentMediaType": eventsType},
			"x-data": schema}}
	} else if schema != nil {
		good["content"] = dict{"application/json": dict{"schema": schema}}
	}
	op := dict{"summary": r.what, "parameters": parameters(r), "responses": dict{"200": good, "default": dict{
		"description": "What is wrong, and what to do.",
		"content":     dict{"application/problem+json": dict{"schema": dict{"$ref": "#/components/schemas/Problem"}}},
	}}}
	if r.open {
		op["security"] = []dict{{}}
	}
	return op
}

func parameters(r route) []dict {
	list := []dict{}
	add := func(in, name, what string, schema dict) {
		list = append(list, dict{"in": in, "name": name, "required": in == "path", "description": what, "schema": schema})
	}
	text := dict{"type": "string", "maxLength": maxArgumentBytes}
	switch {
	case strings.HasPrefix(r.path, "/v1/sessions/{id}"):
		add("path", "id", "The session's number.", dict{"type": "string", "pattern": "^[0-9]+$"})
	case strings.Contains(r.path, "{id}"):
		add("path", "id", "The object's ID: 32 hexadecimal digits. /v1/objects?prefix=NAME finds it by its name.", dict{"type": "string"})
	}
	if strings.HasSuffix(r.path, "/data") {
		add("header", "Range", "One range of bytes (RFC 9110 §14).", dict{"type": "string"})
	}
	if r.stream {
		add("header", "Last-Event-ID", "The id of the last event that the client has.", dict{"type": "string"})
	}
	if r.paged {
		add("query", "limit", "The largest number of entries to return.", dict{"type": "integer", "minimum": 1, "maximum": maxLimit,
			"default": defaultLimit})
		add("query", "after", "The field next of the previous page.", dict{"type": "string", "maxLength": maxPlaceBytes})
		add("query", "prefix", "The beginning of the name.", text)
	}
	for _, name := range strings.Fields(r.takes) {
		schema := text
		if name == "since" {
			schema = schemaOf(timeType)
		}
		if name == "node" {
			schema = dict{"type": "string", "enum": []string{"all"}}
		}
		add("query", name, sieves[name], schema)
	}
	return list
}

// sieves says what the arguments of Page.sieve choose.
var sieves = map[string]string{
	"state":  "Only entries in this state.",
	"tenant": "Only entries of this tenant.",
	"since":  "Only what was at this time or later.",
	"node":   "all: of all nodes that answer; else of this one.",
}

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
	textType = reflect.TypeFor[encoding.TextMarshaler]()
)

// schemaOf describes a type as encoding/json writes it (JSON Schema 2020-12).
func schemaOf(t reflect.Type) dict {
	switch {
	case t == rawType || t.Kind() == reflect.Interface:
		return dict{}
	case t == timeType:
		return dict{"type": "string", "format": "date-time"}
	case t.Implements(textType):
		return dict{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.Bool:
		return dict{"type": "boolean"}
	case reflect.String:
		return dict{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return dict{"type": "number"}
	case reflect.Slice, reflect.Array:
		return dict{"type": []string{"array", "null"}, "items": schemaOf(t.Elem())}
	case reflect.Map:
		return dict{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		return structSchema(t)
	}
	return dict{"type": "integer"}
}

func structSchema(t reflect.Type) dict {
	properties, required := dict{}, []string{}
	for i := range t.NumField() {
		name, rest, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		properties[name] = schemaOf(t.Field(i).Type)
		if !strings.Contains(rest, "omit") {
			required = append(required, name)
		}
	}
	return dict{"type": "object", "properties": properties, "required": required}
}
