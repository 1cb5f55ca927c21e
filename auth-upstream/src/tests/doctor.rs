use crate::doctor::{Doctor, State};
use crate::pool::Flow;
use crate::testing::{Fixture, Wish};

#[tokio::test]
async fn faults_are_named_in_words() {
    let fixture = Fixture::new().await;
    let config = fixture.config.read();
    let doctor = Doctor::new(
        config.identity.clone(),
        Flow::UserPassword,
        fixture.clock.clone(),
    );
    let findings = doctor.examine(&fixture.auth).await;
    let state = |what: &str| {
        findings
            .iter()
            .find(|finding| finding.what == what)
            .expect(what)
            .state
            .clone()
    };
    for what in [
        "actor pool id",
        "database",
        "cache",
        "sign-in",
        "service account",
    ] {
        assert!(
            matches!(state(what), State::Fine(_)),
            "{what}: {:?}",
            state(what)
        );
    }
    // The stub's wire tells the machine's time, and the test's clock stands still.
    assert!(
        matches!(state("clock"), State::Fault(text) if text.contains("the pool's: tokens would be refused"))
    );
    let State::Fault(actor) = state("actor client") else {
        panic!("{findings:?}")
    };
    assert!(
        actor.contains("ALLOW_USER_PASSWORD_AUTH is not enabled"),
        "{actor}"
    );
    assert!(actor.contains("it can write custom:service_id"), "{actor}");
    let State::Fault(service) = state("service client") else {
        panic!("{findings:?}")
    };
    assert!(
        service.contains("not among its ReadAttributes"),
        "{service}"
    );
}

#[tokio::test]
async fn a_provider_whose_word_deletes_accounts_is_warned_of() {
    let fixture = Fixture::with(Wish {
        social: "trust_hosted_domain = true",
        ..Wish::default()
    })
    .await;
    let config = fixture.config.read();
    let doctor = Doctor::new(
        config.identity.clone(),
        Flow::UserPassword,
        fixture.clock.clone(),
    );
    let findings = doctor.examine(&fixture.auth).await;
    let told: Vec<_> = findings
        .iter()
        .filter(|finding| finding.what == "social sign-in")
        .collect();
    assert_eq!(told.len(), 1, "{findings:?}");
    assert!(told[0].needs_attention() && !told[0].is_fault());
    assert!(
        told[0]
            .to_string()
            .starts_with("WARNING social sign-in: social.trust_hosted_domain is on")
    );
}

#[tokio::test]
async fn a_region_that_is_not_the_pools_is_told() {
    let fixture = Fixture::new().await;
    let mut identity = fixture.config.read().identity;
    identity.region = "eu-central-1".to_owned();
    let doctor = Doctor::new(identity, Flow::UserPassword, fixture.clock.clone());
    let findings = doctor.examine(&fixture.auth).await;
    let told = findings
        .iter()
        .find(|finding| finding.what == "actor pool id")
        .expect("looked at")
        .to_string();
    assert!(
        told.starts_with("FAULT") && told.ends_with("set CLOUD_REGION to us-west-2"),
        "{told}"
    );
}
