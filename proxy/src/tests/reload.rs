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
    assert!(
        error.contains("policy: is required") && error.contains("proxy.toml:"),
        "{error}"
    );
    gateway
        .assert_metric("postern_proxy_config_last_reload_successful 0")
        .await;
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
        metrics
            .lines()
            .find(|line| line.starts_with("postern_jwks_age_seconds{"))
            .map(str::to_owned)
    };
    let partner = "\n[[identity.issuer]]\nkind = \"user\"\nissuer = \"http://127.0.0.1:1\"\nclients = [\"web\"]\n";
    gateway.edit(|text| format!("{text}{partner}"));
    gateway.wait_for_version(2).await;
    let keys = gateway.admin_get("/jwks/status").await;
    assert!(
        keys.contains("the server cannot be reached"),
        "keys were fetched before: {keys}"
    );
    // Readiness is evaluated once per second, and the age of the keys is updated after it.
    for _ in 0..2 {
        let before = looked().await;
        wait_until(async || looked().await != before).await;
        assert!(
            !gateway.admin_get("/readyz").await.contains("keys of"),
            "{}",
            gateway.admin_get("/readyz").await
        );
    }
}

#[tokio::test]
async fn temporarily_missing_file_is_accepted_again() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let (file, aside) = (
        gateway.log.path().join("proxy.toml"),
        gateway.log.path().join("aside.toml"),
    );
    std::fs::rename(&file, &aside).expect("moves");
    let said = gateway.wait_for_config_error().await;
    assert!(said.contains("cannot read"), "{said}");
    std::fs::rename(&aside, &file).expect("moves back");
    gateway
        .wait_for_config_status(|status| status["lastError"].is_null())
        .await;
    gateway
        .assert_metric("postern_proxy_config_last_reload_successful 1")
        .await;
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
        format!(
            "{more}{tls}{}",
            text.replace("127.0.0.1:2\"", "127.0.0.1:1\"")
                .replace("[limits]", "[limits]\nstreams = 7")
        )
    });
    let status = gateway.wait_for_version(3).await;
    let needed = serde_json::json!(["tokens", "handover"]);
    assert_eq!(
        status["restartNeeded"], needed,
        "reloadable settings are not reported"
    );
}

#[test]
fn shipped_configuration_is_valid() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../conf/proxy.toml"));
    load(path, |root| Config::read(root, &env())).expect("valid configuration with passing tests");
}

#[test]
fn commented_examples_are_valid() {
    let text = include_str!("../../../conf/proxy.toml");
    let shown = |line: &&str| {
        line.starts_with("# [")
            || line.starts_with("# ") && line.contains(" = ") && !line.contains('(')
    };
    let shown: String = text
        .lines()
        .take_while(|line| !line.starts_with("[[listen]]"))
        .filter(shown)
        .map(|line| format!("{}\n", &line[2..]))
        .collect();
    let config = parse("proxy.toml", &format!("{text}\n{shown}"), |root| {
        Config::read(root, &env())
    })
    .expect("reads");
    assert_eq!(config.identity.issuers().len(), 3, "{shown}");
}

#[test]
fn every_key_is_in_the_reference_and_in_the_schema() {
    let secrets = ["IDP_ACTOR_CLIENT_SECRET", "IDP_SERVICE_CLIENT_SECRET"];
    let account = [
        "IDP_SERVICE_ACCOUNT_USERNAME",
        "IDP_SERVICE_ACCOUNT_PASSWORD",
    ];
    let pools = [
        "IDP_ACTOR_POOL_ID",
        "IDP_ACTOR_CLIENT_ID",
        "IDP_SERVICE_POOL_ID",
        "IDP_SERVICE_CLIENT_ID",
    ];
    let names = secrets.into_iter().chain(account).chain(pools);
    let names = names.chain(["COLLECTOR_TOKEN"]);
    let admin_token = ("POSTERN_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef");
    let values = names.map(|name| (name, "us-west-2_x"));
    let env: Env = values.chain([admin_token]).collect();
    let reference = ConfigurationReference {
        sample: &format!("{}{IDENTITY_TABLES}", include_str!("everything.toml")),
        document: include_str!("../../../docs/reference/configuration.md"),
        sections: &["## Log", "## All processes", "## Gateway: `proxy.toml`"],
    };
    let accepted = reference.assert_complete(|root| Config::read(root, &env));
    let schema = reference.schema("Postern gateway configuration", &accepted);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("proxy.schema.json");
    assert_schema_written(&path, &schema);
}
