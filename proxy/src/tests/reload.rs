use postern_core::config::load;
use postern_core::testing::{ConfigurationReference, IDENTITY_TABLES, assert_schema_written};

use super::*;

#[tokio::test]
async fn valid_file_is_activated_and_invalid_one_ignored() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    assert_eq!(gateway.get("/new", "").await.status, 401);
    let route = "\n[[route]]\nname = \"new\"\npath = \"/new\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n";
    gateway.edit(|text| format!("{text}{route}"));
    let error = gateway.wait_for_config_error().await;
    for text in ["policy: is required", "proxy.toml:"] {
        assert!(error.contains(text), "{error}");
    }
    let counted = "config_last_reload_successful 0";
    gateway.assert_metric(counted).await;
    assert_eq!(gateway.get("/new", "").await.status, 401);
    gateway.edit(|text| format!("{text}policy = \"public\"\n"));
    let status = gateway.wait_for_version(2).await;
    assert!(status["lastError"].is_null(), "{status}");
    assert_eq!(gateway.get("/new", "").await.status, 200);
    let test = "\n[[test]]\nrequest = \"GET /new\"\ndecision = \"not_found\"\n";
    gateway.edit(|text| format!("{text}{test}"));
    let said = gateway.wait_for_config_error().await;
    assert!(said.contains("is decided allow, not not_found"), "{said}");
    assert_eq!(gateway.get("/new", "").await.status, 200);
}

#[tokio::test]
async fn further_issuer_is_not_required_for_readiness() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let looked = async || {
        let metrics = gateway.admin_get("/metrics").await;
        let mut lines = metrics.lines().map(str::to_owned);
        lines.find(|line| line.starts_with("postern_jwks_age_seconds{"))
    };
    let partner = "\n[[identity.issuer]]\nkind = \"user\"\nissuer = \"http://127.0.0.1:1\"\nclients = [\"web\"]\n";
    gateway.edit(|text| format!("{text}{partner}"));
    gateway.wait_for_version(2).await;
    let keys = gateway.admin_get("/jwks/status").await;
    let holds = keys.contains("the server cannot be reached");
    assert!(holds, "keys were fetched before: {keys}");
    // Readiness is evaluated once per second, and the age of the keys is updated after it.
    for _ in 0..2 {
        let before = looked().await;
        wait_until(async || looked().await != before).await;
        let holds = !gateway.admin_get("/readyz").await.contains("keys of");
        assert!(holds, "{}", gateway.admin_get("/readyz").await);
    }
}

#[tokio::test]
async fn temporarily_missing_file_is_accepted_again() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let [file, aside] = ["proxy.toml", "aside.toml"].map(|name| gateway.log.path().join(name));
    std::fs::rename(&file, &aside).expect("moves");
    let said = gateway.wait_for_config_error().await;
    assert!(said.contains("cannot read"), "{said}");
    std::fs::rename(&aside, &file).expect("moves back");
    let is_good = |status: &Value| status["lastError"].is_null();
    gateway.wait_for_config_status(is_good).await;
    let counted = "config_last_reload_successful 1";
    gateway.assert_metric(counted).await;
}

#[tokio::test]
async fn startup_only_changes_are_reported() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    gateway.edit(|text| text.replace("127.0.0.1:1\"", "127.0.0.1:2\""));
    let status = gateway.wait_for_version(2).await;
    assert_eq!(status["restartNeeded"], serde_json::json!(["listen"]));
    let more = "[tokens]\ncache_bytes = \"1MiB\"\n[handover]\nsocket = \"/tmp/none\"\n[stop]\ndrain = \"1s\"\n";
    let tls = "[upstream.far]\naddresses = [\"127.0.0.1:9\"]\n[upstream.far.tls]\n";
    gateway.edit(|text| {
        let text = text.replace("127.0.0.1:2\"", "127.0.0.1:1\"");
        let text = text.replace("[limits]", "[limits]\nstreams = 7");
        format!("{more}{tls}{text}")
    });
    let status = gateway.wait_for_version(3).await;
    // Reloadable settings are not reported.
    assert_eq!(status["restartNeeded"], json!(["tokens", "handover"]));
}

#[test]
fn shipped_configuration_is_valid() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../conf/proxy.toml"));
    load(path, |root| Config::read(root, &env())).expect("valid configuration with passing tests");
}

#[test]
fn commented_examples_are_valid() {
    let text = include_str!("../../../conf/proxy.toml");
    let shown = |line: &str| {
        let line = line.strip_prefix("# ")?;
        let is_key = line.contains(" = ") && !line.contains('(');
        (line.starts_with('[') || is_key).then(|| format!("{line}\n"))
    };
    let (examples, _) = text.split_once("\n[[listen]]").expect("a listener");
    let shown: String = examples.lines().filter_map(shown).collect();
    let config = read_config(&format!("{text}\n{shown}")).expect("reads");
    assert_eq!(config.identity.issuers().len(), 3, "{shown}");
}

/// Adds the keys of routes, which a group may have as well, and the items of its lists.
fn add_keys_of_groups(schema: &mut Value) {
    let properties = &mut schema["properties"];
    let mut route = properties["route"]["items"].take();
    let keys = route.as_object_mut().expect("an object");
    keys.remove("additionalProperties");
    let required = keys.remove("required").expect("required keys");
    let item = |required: &Value| json!({ "$ref": "#/$defs/route", "unevaluatedProperties": false, "required": required });
    properties["route"]["items"] = item(&required);
    let group = &mut properties["group"]["items"];
    let fields = group.as_object_mut().expect("an object");
    fields.remove("additionalProperties");
    fields.extend([
        ("$ref".to_owned(), json!("#/$defs/route")),
        ("unevaluatedProperties".to_owned(), json!(false)),
        (
            "not".to_owned(),
            json!({ "anyOf": [{ "required": ["name"] }, { "required": ["path"] }] }),
        ),
    ]);
    for (list, item) in [
        ("route", item(&json!(["path"]))),
        ("test", json!({ "$ref": "#/properties/test/items" })),
    ] {
        group["properties"][list]["type"] = json!("array");
        group["properties"][list]["items"] = item;
    }
    schema["$defs"]["route"] = route;
}

/// The sections of the reference that are generated, and their tables.
const GENERATED: [(&str, &[&str]); 6] = [
    (
        "proxy.toml: process",
        &[
            "listen",
            "acme",
            "admin",
            "workers",
            "tokens",
            "api_keys",
            "stop",
            "handover",
            "access_log",
        ],
    ),
    ("proxy.toml: limits", &["limits"]),
    ("proxy.toml: upstreams", &["upstream"]),
    (
        "proxy.toml: defaults",
        &[
            "defaults.limits[]",
            "defaults.request_headers.",
            "defaults.response_headers.",
            "defaults.access.",
            "defaults.authorize.",
            "defaults.compression.",
            "defaults.cors.",
        ],
    ),
    (
        "proxy.toml: routes",
        &[
            "route[].path",
            "route[].ignore_case",
            "route[].methods",
            "route[].hosts",
            "route[].headers",
            "route[].query",
            "route[].redirect.",
            "route[].respond.",
            "route[].policy.users.",
            "route[].policy.services.",
            "route[].rewrite.",
            "route[].mirror.",
        ],
    ),
    ("proxy.toml: tests", &["test[]"]),
];

#[test]
fn every_key_is_in_the_reference_and_in_the_schema() {
    let names = "IDP_ACTOR_CLIENT_SECRET IDP_SERVICE_CLIENT_SECRET IDP_SERVICE_ACCOUNT_USERNAME \
        IDP_SERVICE_ACCOUNT_PASSWORD IDP_ACTOR_POOL_ID IDP_ACTOR_CLIENT_ID IDP_SERVICE_POOL_ID \
        IDP_SERVICE_CLIENT_ID COLLECTOR_TOKEN";
    let admin_token = ("POSTERN_ADMIN_TOKEN", ADMIN_TOKEN);
    let values = names.split(' ').map(|name| (name, "us-west-2_x"));
    let env: Env = values.chain([admin_token]).collect();
    let reference = ConfigurationReference {
        sample: &format!("{}{IDENTITY_TABLES}", include_str!("everything.toml")),
        generated: &GENERATED,
        sections: &["## Log", "## All processes", "## Gateway: `proxy.toml`"],
    };
    let accepted = reference.assert_complete(|root| Config::read(root, &env));
    let mut schema = reference.schema("Postern gateway configuration", &accepted);
    add_keys_of_groups(&mut schema);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("proxy.schema.json");
    assert_schema_written(&path, &schema);
}
