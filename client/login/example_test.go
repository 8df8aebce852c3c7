package login_test

import (
	"context"
	"fmt"
	"log"

	"tendril/client"
	"tendril/client/login"
)

// A login is kept: later programs of this user need no token.
func ExampleLogin() {
	ctx := context.Background()
	in, err := login.Login(ctx, "gpubox", "the token that tendril token create printed there", "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("logged in as", in.Name, "of tenant", in.Tenant)

	conn, err := client.DialServer(ctx, "gpubox", client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	conn.Close()
}
