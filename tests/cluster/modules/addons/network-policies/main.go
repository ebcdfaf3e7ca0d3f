// Command network-policies is kube-router's network policy controller alone: it enforces a node's NetworkPolicies with iptables and ipset.
//
// It takes kube-router's own flags, as --kubeconfig and --hostname-override.
package main

import (
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	klog.InitFlags(nil)
	config := options.NewKubeRouterConfig()
	config.AddFlags(pflag.CommandLine)
	pflag.CommandLine.AddGoFlagSet(flag.CommandLine)
	pflag.Parse()
	client := must(kubernetes.NewForConfig(must(clientcmd.BuildConfigFromFlags("", config.Kubeconfig))))
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods().Informer(), factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		log.Fatal(err)
	}
	var mutex sync.Mutex
	controller := must(netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &mutex, iptables, ipsets))
	must(pods.AddEventHandler(controller.PodEventHandler))
	must(namespaces.AddEventHandler(controller.NamespaceEventHandler))
	must(policies.AddEventHandler(controller.NetworkPolicyEventHandler))
	heartbeats := make(chan *healthcheck.ControllerHeartbeat, 1)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(heartbeats, stop, &running)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	close(stop)
	running.Wait()
}
