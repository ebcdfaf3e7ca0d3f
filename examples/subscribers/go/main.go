// Follows what is granted where, with NATS' client and the fields of docs/protocol/event.schema.json alone. NATS_URL says where the bus is.
//
//	go run . my-dashboard          until Ctrl-C
//	go run . my-dashboard --once   what has come since the last run
//
// The consumer's place is kept on the server under its durable name: a second run goes on where the first one ended. What is done with an event is
// done before it is acknowledged, so it can be done twice: the id tells.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// grant is what PodAllocating says, as event.schema.json has it; fields that are not needed are left out.
type grant struct {
	Type        string `json:"type"`
	Node        string `json:"node"`
	Pod         pod    `json:"pod"`
	Assignments []struct {
		Vendor     string `json:"vendor"`
		Containers []struct {
			Container string `json:"container"`
			Shares    []struct {
				UUID      string `json:"uuid"`
				MemoryMiB int    `json:"memoryMib"`
				Cores     int    `json:"cores"`
			} `json:"shares"`
		} `json:"containers"`
	} `json:"assignments"`
}

// subject is where such a grant is published: who may publish there is enforced, what a body says is not.
func (g grant) subject() string {
	token := strings.NewReplacer(".", "_").Replace
	return fmt.Sprintf("hami.v1.allocations.%s.%s.%s.grant", token(g.Node), token(g.Pod.Namespace), token(g.Pod.Name))
}

type pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: subscriber DURABLE [--once]")
	}
	once := len(os.Args) > 2 && os.Args[2] == "--once"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := follow(ctx, os.Getenv("NATS_URL"), os.Args[1], once); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func follow(ctx context.Context, url, durable string, once bool) error {
	connection, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	defer connection.Close()
	stream, err := jetstream.New(connection)
	if err != nil {
		return err
	}
	consumer, err := stream.CreateOrUpdateConsumer(ctx, "HAMI_ALLOCATIONS", jetstream.ConsumerConfig{
		Durable:       durable,
		AckPolicy:     jetstream.AckExplicitPolicy,
		FilterSubject: "hami.v1.allocations.*.*.*.grant",
	})
	if err != nil {
		return err
	}
	for {
		batch, err := consumer.Fetch(64, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		count := 0
		for message := range batch.Messages() {
			count++
			show(message)
			if err := message.Ack(); err != nil { // after the work: what was not acknowledged comes again
				return err
			}
		}
		if err := ctx.Err(); err != nil || (once && count == 0) {
			return err
		}
	}
}

// show prints a grant; of other events, of those that nobody can read, and of those on another's subject, nothing.
func show(message jetstream.Msg) {
	var said grant
	if json.Unmarshal(message.Data(), &said) != nil || said.Type != "pod_allocating" || message.Subject() != said.subject() {
		return
	}
	for _, given := range said.Assignments {
		for _, container := range given.Containers {
			for _, share := range container.Shares {
				fmt.Printf("%s/%s %s on %s: %d MiB %d %% of %s\n", said.Pod.Namespace, said.Pod.Name, container.Container, said.Node,
					share.MemoryMiB, share.Cores, share.UUID)
			}
		}
	}
}
