// Command cert-manager is cert-manager's controllers for Issuers of kind selfSigned and ca, and its CA injector, in one process.
//
// cert-manager's own commands are no modules that the proxy serves; its packages are.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	certificates "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requestsca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	requestsselfsigned "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// names are the controllers that a selfSigned or ca issuer needs.
var names = []string{
	issuers.ControllerName,
	trigger.ControllerName, keymanager.ControllerName, requestmanager.ControllerName, issuing.ControllerName,
	readiness.ControllerName, revisionmanager.ControllerName,
	approver.ControllerName, requestsca.CRControllerName, requestsselfsigned.CRControllerName,
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	kubeconfig := flag.Lookup("kubeconfig") // controller-runtime registers it
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	path := kubeconfig.Value.String()
	factory := must(controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:    path,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: "cert-manager"},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Second,
			CertificateRequestMaximumBackoffDuration: time.Minute,
		},
	}))
	var running sync.WaitGroup
	for _, name := range names {
		each := must(controller.Known()[name](factory))
		running.Add(1)
		go func() {
			defer running.Done()
			if err := each.Run(2, ctx); err != nil {
				log.Fatalf("%s: %v", name, err)
			}
		}()
	}
	shared := must(factory.Build())
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, certificates.AddToScheme} {
		if err := add(kinds); err != nil {
			log.Fatal(err)
		}
	}
	config := must(clientcmd.BuildConfigFromFlags("", path))
	config.UserAgent = "cert-manager-cainjector/test" // the injector's field manager is the part before the slash
	ctrl.SetLogger(klog.Background())
	manager := must(ctrl.NewManager(config, ctrl.Options{Scheme: kinds, Metrics: server.Options{BindAddress: "0"}}))
	injectors := cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{"mutatingwebhookconfiguration": true, "validatingwebhookconfiguration": true},
	}
	if err := cainjector.RegisterAllInjectors(ctx, manager, injectors); err != nil {
		log.Fatal(err)
	}
	if err := manager.Start(ctx); err != nil {
		log.Fatal(err)
	}
	running.Wait()
}
