use postern_core::clock::Timestamp;

use super::*;

const LOG: &str = r#"{"timestamp":"2026-11-20T07:30:00.000Z","request_id":"r-1","method":"POST","path":"/auth/login","route":"/auth/login","status":401,"code":"invalid_credentials","duration_ms":12.5}
not JSON
{"timestamp":"2026-11-20T07:31:00.000Z","request_id":"r-2","method":"GET","path":"/auth/me","status":200,"code":"ok","subject":"s-1"}
{"timestamp":"2026-11-20T07:32:00.000Z","request_id":"r-3","method":"GET","path":"/notifications/n-1","status":404,"code":"not_found","subject":"s-2"}
"#;

fn events(selector: TimelineSelector, since: Timestamp) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("access.log");
    std::fs::write(&path, LOG).expect("written");
    let mut query = TimelineQuery::new(selector, 10);
    query.since = since;
    let entries = read_access_log(&path, &AccessLogFilter::of(&query)).expect("read");
    entries.iter().map(ToString::to_string).collect()
}

#[test]
fn access_events_of_a_request_user_or_notification_are_read() {
    let all = Timestamp(0);
    let login = "2026-11-20T07:30:00.000Z gateway POST /auth/login invalid_credentials \
        durationMs=12.5 requestId=r-1 route=/auth/login status=401";
    let of_request = events(TimelineSelector::Request("r-1".to_owned()), all);
    assert_eq!(of_request, [login]);
    let user = || TimelineSelector::User("s-1".to_owned());
    let notification = |id: &str| TimelineSelector::Notification(id.to_owned());
    for (selector, part) in [
        (user(), "GET /auth/me ok"),
        (notification("n-1"), "status=404"),
    ] {
        let events = events(selector, all);
        assert!(events.len() == 1 && events[0].contains(part), "{events:?}");
    }
    assert!(events(notification("n"), all).is_empty());
    let later = Timestamp::parse("2026-11-20T07:31:30Z").expect("a time");
    assert!(events(user(), later).is_empty());
}

#[tokio::test]
async fn missing_installation_is_not_created() {
    let folder = tempfile::tempdir().expect("a folder");
    let sources = TimelineSources {
        config: None,
        data_dir: folder.path().join("none"),
        access_log: None,
    };
    let user = TimelineSelector::User("s".to_owned());
    for (selector, reason) in [(user, "--data-dir"), (TimelineSelector::All, "--user")] {
        let query = TimelineQuery::new(selector, 10);
        let exit = timeline(&sources, &query, &Env::default()).await;
        let exit = exit.expect_err(reason);
        assert_eq!(exit.status(), 64);
        assert!(exit.message().contains(reason), "{exit}");
    }
    assert!(!folder.path().join("none").exists());
}
