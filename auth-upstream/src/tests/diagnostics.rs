use postern_common::check::CheckStatus;

use crate::diagnostics::Diagnostics;
use crate::pool::PasswordAuthFlow;
use crate::testing::{Fixture, FixtureOptions};

#[tokio::test]
async fn errors_are_reported_with_their_remedy() {
    let fixture = Fixture::new().await;
    let config = fixture.settings.read();
    let diagnostics = Diagnostics::new(
        config.identity.clone(),
        PasswordAuthFlow::UserPassword,
        fixture.clock.clone(),
    );
    let results = diagnostics.run(&fixture.service).await;
    let status = |subject: &str| {
        results
            .iter()
            .find(|result| result.subject == subject)
            .expect(subject)
            .status
            .clone()
    };
    for subject in [
        "actor pool id",
        "database",
        "cache",
        "sign-in",
        "service account",
    ] {
        assert!(
            matches!(status(subject), CheckStatus::Passed(_)),
            "{subject}: {:?}",
            status(subject)
        );
    }
    // The stub sends the time of the machine, and the clock of the test is fixed.
    assert!(
        matches!(status("clock"), CheckStatus::Fault(text) if text.contains("the pool's: tokens would be rejected"))
    );
    let CheckStatus::Fault(actor) = status("actor client") else {
        panic!("{results:?}")
    };
    assert!(
        actor.contains("ALLOW_USER_PASSWORD_AUTH is not enabled"),
        "{actor}"
    );
    assert!(actor.contains("it can write custom:service_id"), "{actor}");
    let CheckStatus::Fault(service) = status("service client") else {
        panic!("{results:?}")
    };
    assert!(
        service.contains("not among its ReadAttributes"),
        "{service}"
    );
}

#[tokio::test]
async fn unusual_authority_of_a_provider_is_a_warning() {
    let fixture = Fixture::with(FixtureOptions {
        social: "trust_hosted_domain = true",
        ..FixtureOptions::default()
    })
    .await;
    let config = fixture.settings.read();
    let diagnostics = Diagnostics::new(
        config.identity.clone(),
        PasswordAuthFlow::UserPassword,
        fixture.clock.clone(),
    );
    let results = diagnostics.run(&fixture.service).await;
    let reported: Vec<_> = results
        .iter()
        .filter(|result| result.subject == "social sign-in")
        .collect();
    assert_eq!(reported.len(), 1, "{results:?}");
    assert!(reported[0].needs_attention() && !reported[0].is_fault());
    assert!(
        reported[0]
            .to_string()
            .starts_with("WARNING social sign-in: social.trust_hosted_domain is enabled")
    );
}

#[tokio::test]
async fn region_that_differs_from_the_pools_is_reported() {
    let fixture = Fixture::new().await;
    let mut identity = fixture.settings.read().identity;
    identity.region = "eu-central-1".to_owned();
    let diagnostics = Diagnostics::new(
        identity,
        PasswordAuthFlow::UserPassword,
        fixture.clock.clone(),
    );
    let results = diagnostics.run(&fixture.service).await;
    let reported = results
        .iter()
        .find(|result| result.subject == "actor pool id")
        .expect("a result")
        .to_string();
    assert!(
        reported.starts_with("FAULT") && reported.ends_with("set CLOUD_REGION to us-west-2"),
        "{reported}"
    );
}
