package admin_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"tendril/client"
	"tendril/client/admin"
	"tendril/cluster/pki"
)

func ExampleOf() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	status, err := admin.Of(conn).Status(ctx) // JSON, as tendril status --json prints it
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(status))
}

// A token lets a program of another machine in, once.
func ExampleNode_CreateToken() {
	ctx := context.Background()
	conn, err := client.Dial(ctx, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	token, err := admin.Of(conn).CreateToken(ctx, admin.TokenOptions{Role: pki.User, Life: time.Hour, Once: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token) // a secret: for tendril login there, or login.Login
}
