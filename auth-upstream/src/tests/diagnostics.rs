//! The checks of `postern-auth check`.

use postern_core::check::{CheckResult, CheckStatus};
use serde_json::json;

use crate::config::Config;
use crate::diagnostics::run_checks;
use crate::testing::{Fault, Fixture};

async fn run(fixture: &Fixture, change: impl FnOnce(&mut Config)) -> Vec<CheckResult> {
    let mut config = fixture.settings.read();
    change(&mut config);
    run_checks(&config.identity, &fixture.clock, &fixture.service).await
}

#[track_caller]
fn result<'a>(results: &'a [CheckResult], subject: &str) -> &'a CheckResult {
    let mut matching = results.iter().filter(|result| result.subject == subject);
    let (Some(found), None) = (matching.next(), matching.next()) else {
        panic!("{subject}: {results:?}")
    };
    found
}

#[track_caller]
fn assert_fault(results: &[CheckResult], subject: &str, parts: &[&str]) {
    let CheckStatus::Fault(text) = &result(results, subject).status else {
        panic!("{results:?}")
    };
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

const SUBJECTS: [&str; 6] = [
    "actor pool id",
    "database",
    "cache",
    "sign-in",
    "service account",
    "notification service",
];

#[tokio::test]
async fn errors_are_reported_with_their_remedy() {
    let fixture = Fixture::new().await;
    let results = run(&fixture, |_| {}).await;
    for subject in SUBJECTS
        .into_iter()
        .chain(["actor client", "service client"])
    {
        let status = &result(&results, subject).status;
        assert!(
            matches!(status, CheckStatus::Passed(_)),
            "{subject}: {status:?}"
        );
    }
    // An app client without password sign-in that can write the service id.
    let client = json!({ "UserPoolClient": {
        "ExplicitAuthFlows": ["ALLOW_REFRESH_TOKEN_AUTH"], "ReadAttributes": ["email"],
        "WriteAttributes": ["email", "custom:service_id"],
        "AllowedOAuthFlowsUserPoolClient": true,
    } });
    fixture.inject("DescribeUserPoolClient", 2, Fault::answer(200, &client));
    let results = run(&fixture, |_| {}).await;
    let parts = [
        "ALLOW_USER_PASSWORD_AUTH is not enabled",
        "it can write custom:service_id",
        "sign-in pages (AllowedOAuthFlowsUserPoolClient) are enabled",
    ];
    assert_fault(&results, "actor client", &parts);
    let parts = ["not among its ReadAttributes"];
    assert_fault(&results, "service client", &parts);
}

#[tokio::test]
async fn region_that_differs_from_the_pools_is_reported() {
    let fixture = Fixture::new().await;
    let elsewhere = |config: &mut Config| "eu-central-1".clone_into(&mut config.identity.region);
    let results = run(&fixture, elsewhere).await;
    let parts = ["set CLOUD_REGION to us-west-2"];
    assert_fault(&results, "actor pool id", &parts);
}

#[tokio::test]
async fn social_users_without_tokens_are_reported() {
    let fixture = Fixture::without_proof_key().await;
    let results = run(&fixture, |_| {}).await;
    let reported = result(&results, "social tokens").to_string();
    let expected = "WARNING social tokens: exchanges return the user without tokens";
    assert!(reported.starts_with(expected), "{reported}");
    let fixture = Fixture::new().await;
    let results = run(&fixture, |_| {}).await;
    for subject in ["social tokens", "user names", "registration"] {
        let status = &result(&results, subject).status;
        assert!(matches!(status, CheckStatus::Passed(_)), "{status:?}");
    }
    let message = "CUSTOM_AUTH flow not enabled for this client";
    let disabled = Fault::exception("InvalidParameterException", message);
    fixture.inject("InitiateAuth", 2, disabled);
    let pool = json!({ "UserPool": {
        "AdminCreateUserConfig": { "AllowAdminCreateUserOnly": true },
        "SchemaAttributes": [
            { "Name": "sub", "Required": true }, { "Name": "email", "Required": true },
            { "Name": "given_name", "Required": true }, { "Name": "locale", "Required": false },
        ],
    } });
    fixture.inject("DescribeUserPool", 1, Fault::answer(200, &pool));
    let results = run(&fixture, |_| {}).await;
    assert_fault(&results, "social tokens", &[message]);
    let parts = [
        "AllowAdminCreateUserOnly",
        "requires given_name, and only email",
    ];
    assert_fault(&results, "registration", &parts);
    let reported = result(&results, "user names");
    assert!(reported.needs_attention() && !reported.is_fault());
}

#[tokio::test]
async fn issuer_that_the_pool_writes_is_reported() {
    let fixture = Fixture::new().await;
    let own = "https://cognito-idp.us-west-2.amazonaws.com/us-west-2_a";
    let updated = "https://issuer-cognito-idp.us-west-2.amazonaws.com/us-west-2_a";
    for (written, alias, expected) in [
        ("UPDATED", Some(updated), Some(updated)),
        ("ORIGINAL", Some(updated), Some(own)),
        ("ORIGINAL", None, Some(own)),
        ("UPDATED", None, None),
    ] {
        let pool = json!({ "UserPool": { "IssuerConfiguration": { "Type": written } } });
        fixture.inject("DescribeUserPool", 1, Fault::answer(200, &pool));
        let configure = |config: &mut Config| {
            let actor = &mut config.identity.actor;
            actor.issuer = own.to_owned();
            actor.issuer_alias = alias.map(str::to_owned);
        };
        let results = run(&fixture, configure).await;
        match expected {
            Some(issuer) => {
                let status = &result(&results, "actor issuer").status;
                let passed =
                    matches!(status, CheckStatus::Passed(text) if text.starts_with(issuer));
                assert!(passed, "{written} {alias:?}: {status:?}");
            }
            None => assert_fault(&results, "actor issuer", &["writes its other form"]),
        }
    }
}

#[tokio::test]
async fn codes_of_the_pool_are_compared_with_the_setting() {
    for (config, sends, expected) in [
        ("", true, "WARNING registration: the pool sends a second"),
        ("", false, "ok      registration: "),
        (
            "confirm = 'code'\ncodes = 'pool'",
            true,
            "ok      registration: ",
        ),
        (
            "confirm = 'code'\ncodes = 'pool'",
            false,
            "FAULT   registration: no code",
        ),
    ] {
        let fixture = Fixture::with_config(config).await;
        let verified = if sends { json!(["email"]) } else { json!([]) };
        let pool = json!({ "UserPool": { "AutoVerifiedAttributes": verified } });
        fixture.inject("DescribeUserPool", 1, Fault::answer(200, &pool));
        let results = run(&fixture, |_| {}).await;
        let reported = result(&results, "registration").to_string();
        assert!(reported.starts_with(expected), "{config}: {reported}");
    }
}
