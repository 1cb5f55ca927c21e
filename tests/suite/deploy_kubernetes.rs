//! The Kubernetes manifests, rendered by `kubectl kustomize`, against the configuration and the
//! programs: ports, paths, flags, names, and times of the shutdown.

use std::process::Command;

use postern_harness::paths::{peer, repository};
use postern_harness::skipped;
use postern_harness::systems::{obstacle, succeed, system};
use serde_json::Value;

use crate::observability::yaml;

/// Process, ports of clients and of the admin listener.
const PROCESSES: [(&str, u64, Option<u64>); 4] = [
    ("proxy", 8500, Some(8509)),
    ("auth", 8501, Some(8510)),
    ("notify", 8502, Some(8511)),
    ("console", 8512, None),
];

/// The rendered objects of an overlay.
struct Manifests {
    objects: Vec<Value>,
    folder: tempfile::TempDir,
}

impl Manifests {
    /// Writes the configuration as docs/manual/deploy.md says, and renders an overlay with kubectl in the
    /// file system of Debian 13.
    fn render(overlay: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let deploy = repository().join("conf/deploy");
        let mut copy = Command::new("cp");
        let copy = copy.arg("-R").arg(deploy.join("kubernetes"));
        let _output = succeed(copy.arg(folder.path()));
        let mut configure = Command::new(deploy.join("configure"));
        let config = folder.path().join("kubernetes/base/config");
        let _output = succeed(configure.arg(config).arg("network"));
        let mut kustomize = Command::new("unshare");
        let script = "mount --bind \"$0\" \"$1/mnt\" && exec chroot \"$1\" kubectl kustomize \"/mnt/kubernetes/overlays/$2\"";
        kustomize
            .args(["--mount", "sh", "-c", script])
            .arg(folder.path());
        let rendered = succeed(kustomize.arg(system("trixie")).arg(overlay));
        let objects = rendered.split("\n---\n").map(yaml).collect();
        std::fs::write(folder.path().join("rendered.yaml"), rendered).expect("written");
        Self { objects, folder }
    }

    /// Returns the objects of a kind.
    fn of(&self, kind: &str) -> Vec<&Value> {
        let objects = self.objects.iter();
        objects.filter(|object| object["kind"] == kind).collect()
    }

    fn named(&self, kind: &str, name: &str) -> &Value {
        let mut objects = self.of(kind).into_iter();
        let found = objects.find(|object| object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    /// Returns whether a selector selects the pods of a Deployment.
    fn selects_pods(&self, selector: &Value) -> bool {
        let wanted = selector.as_object().expect("labels");
        self.of("Deployment").iter().any(|deployment| {
            let labels = &deployment["spec"]["template"]["metadata"]["labels"];
            wanted.iter().all(|(name, value)| labels[name] == *value)
        })
    }

    /// Returns the configuration of a process, from the ConfigMap that its Deployment mounts.
    fn config(&self, process: &str) -> toml::Table {
        let deployment = self.named("Deployment", &format!("postern-{process}"));
        let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array();
        let mut volumes = volumes.expect("volumes").iter();
        let volume = volumes.find(|volume| volume["name"] == "config");
        let name = volume.and_then(|volume| volume["configMap"]["name"].as_str());
        let map = self.named("ConfigMap", name.expect("a name"));
        let text = &map["data"][format!("{process}.toml")];
        text.as_str().expect("a file").parse().expect("TOML")
    }

    /// Asserts that a Service with this name has this port.
    #[track_caller]
    fn assert_service(&self, address: &str) {
        let (name, port) = address.rsplit_once(':').expect("a port");
        let ports = self.named("Service", name)["spec"]["ports"].as_array();
        let port: u64 = port.parse().expect("a port");
        let mut ports = ports.expect("ports").iter();
        assert!(ports.any(|one| one["port"] == port), "{address}");
    }
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

fn seconds(text: &toml::Value) -> u64 {
    let text = text.as_str().expect("a duration");
    text.trim_end_matches('s').parse().expect("seconds")
}

fn assert_deployment(manifests: &Manifests, (process, http, admin): (&str, u64, Option<u64>)) {
    let name = format!("postern-{process}");
    let deployment = manifests.named("Deployment", &name);
    let container = container(deployment);
    let folder = format!("/etc/postern/{process}");
    let command = [&*name, "--config", &*format!("{folder}/{process}.toml")];
    assert_eq!(container["command"], serde_json::json!(command));
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let mut mounts = mounts.iter();
    assert!(mounts.any(|mount| mount["mountPath"] == *folder), "{name}");
    // The ports are those on which the program listens, on all addresses.
    let config = manifests.config(process);
    let ports = container["ports"].as_array().expect("ports");
    let port_of = |name: &str| {
        let port = ports.iter().find(|port| port["name"] == name);
        port.and_then(|port| port["containerPort"].as_u64())
    };
    assert_eq!((port_of("http"), port_of("admin")), (Some(http), admin));
    let listen = config["listen"][0]["address"].as_str();
    assert_eq!(listen, Some(format!("0.0.0.0:{http}").as_str()));
    if let Some(admin) = admin {
        let address = config["admin"]["address"].as_str();
        assert_eq!(address, Some(format!("0.0.0.0:{admin}").as_str()));
        manifests.assert_service(&format!("{name}-admin:{admin}"));
        // The variable that the file names is set from a Secret.
        let variable = config["admin"]["token_env"].as_str().expect("a variable");
        let mut set = container["env"].as_array().expect("variables").iter();
        let key = set.find(|one| one["name"] == variable);
        let key = &key.expect("set")["valueFrom"]["secretKeyRef"]["key"];
        assert_eq!(key, variable);
    }
    manifests.assert_service(&format!("{name}:{http}"));
    let port = if admin.is_some() { "admin" } else { "http" };
    let ready = if admin.is_some() { "/readyz" } else { "/livez" };
    for (probe, path) in [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", ready),
    ] {
        assert_eq!(container[probe]["httpGet"]["path"], path, "{name}");
        assert_eq!(container[probe]["httpGet"]["port"], port, "{name}");
    }
}

/// The grace period covers the delay before SIGTERM and the shutdown of the program.
fn assert_shutdown_times(manifests: &Manifests) {
    let proxy = manifests.config("proxy");
    let stop = &proxy["stop"];
    for (process, shutdown) in [
        ("proxy", seconds(&stop["notice"]) + seconds(&stop["drain"])),
        // Requests in flight have the deadline of a request at the gateway.
        ("auth", 40),
        ("notify", 110),
        ("console", 10),
    ] {
        let deployment = manifests.named("Deployment", &format!("postern-{process}"));
        let pod = &deployment["spec"]["template"]["spec"];
        let grace = pod["terminationGracePeriodSeconds"].as_u64();
        let grace = grace.expect("seconds");
        let delay = &container(deployment)["lifecycle"]["preStop"]["sleep"]["seconds"];
        let delay = delay.as_u64().expect("seconds");
        // Endpoints are removed within the delay: longer than two readiness probes.
        assert!(delay >= 5, "{process}: {delay} s");
        assert!(grace >= delay + shutdown + 5, "{process}: {grace} s");
    }
}

/// Everything that an object names exists.
fn assert_references(manifests: &Manifests) {
    for service in manifests.of("Service") {
        let selector = &service["spec"]["selector"];
        assert!(manifests.selects_pods(selector), "{service}");
    }
    for kind in ["NetworkPolicy", "PodDisruptionBudget"] {
        for object in manifests.of(kind) {
            let spec = &object["spec"];
            let selector = spec.get("podSelector").unwrap_or(&spec["selector"]);
            assert!(manifests.selects_pods(&selector["matchLabels"]), "{object}");
        }
    }
    for scaler in manifests.of("HorizontalPodAutoscaler") {
        let name = scaler["spec"]["scaleTargetRef"]["name"].as_str();
        let deployment = manifests.named("Deployment", name.expect("a name"));
        let replicas = deployment["spec"].get("replicas");
        assert_eq!(replicas, None, "the autoscaler sets it");
    }
    for monitor in manifests.of("ServiceMonitor") {
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object();
        let wanted = wanted.expect("labels");
        let services = manifests.of("Service").into_iter().filter(|service| {
            let labels = &service["metadata"]["labels"];
            wanted.iter().all(|(name, value)| labels[name] == *value)
        });
        assert_eq!(services.count(), 3, "gateway, auth and notify");
    }
    // The addresses in the configuration are those of Services.
    let proxy = manifests.config("proxy");
    for upstream in ["auth", "notify"] {
        let address = &proxy["upstream"][upstream]["addresses"][0];
        manifests.assert_service(address.as_str().expect("an address"));
    }
    let console = manifests.config("console");
    let urls = console["process"].as_array().expect("tables").iter();
    let urls = urls.map(|process| &process["urls"][0]);
    for url in urls.chain([&console["sign_in"]["auth"]]) {
        let url = url.as_str().expect("a URL");
        manifests.assert_service(url.trim_start_matches("http://"));
    }
}

#[test]
fn kubernetes_overlays_match_programs_and_configuration() {
    const NAME: &str = "kubernetes_overlays_match_programs_and_configuration";
    if let Some(obstacle) = obstacle() {
        return skipped(NAME, &obstacle);
    }
    for (overlay, scalers, budgets) in [("production", 3, 3), ("development", 0, 0)] {
        let manifests = Manifests::render(overlay);
        for process in PROCESSES {
            assert_deployment(&manifests, process);
        }
        assert_shutdown_times(&manifests);
        assert_references(&manifests);
        assert_eq!(manifests.of("HorizontalPodAutoscaler").len(), scalers);
        assert_eq!(manifests.of("PodDisruptionBudget").len(), budgets);
        assert_eq!(manifests.of("NetworkPolicy").len(), 4);
        let rendered = manifests.folder.path().join("rendered.yaml");
        let mut validate = Command::new(peer("deploy/python/bin/kubernetes-validate"));
        let _output = succeed(validate.args(["--strict", "--quiet"]).arg(rendered));
    }
}
