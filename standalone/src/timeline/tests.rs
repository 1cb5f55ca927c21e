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
    let query = TimelineQuery {
        since,
        ..TimelineQuery::new(selector, 10)
    };
    let entries = read_access_log(&path, &AccessLogFilter::of(&query)).expect("read");
    entries.iter().map(ToString::to_string).collect()
}

#[test]
fn access_events_of_a_request_user_or_notification_are_read() {
    let all = Timestamp(0);
    let login = "2026-11-20T07:30:00.000Z gateway POST /auth/login invalid_credentials \
        durationMs=12.5 requestId=r-1 route=/auth/login status=401";
    assert_eq!(
        events(TimelineSelector::Request("r-1".to_owned()), all),
        [login]
    );
    let of_user = events(TimelineSelector::User("s-1".to_owned()), all);
    assert!(
        of_user.len() == 1 && of_user[0].contains("GET /auth/me ok"),
        "{of_user:?}"
    );
    let of_notification = events(TimelineSelector::Notification("n-1".to_owned()), all);
    assert!(
        of_notification[0].contains("status=404"),
        "{of_notification:?}"
    );
    assert!(events(TimelineSelector::Notification("n".to_owned()), all).is_empty());
    let later = Timestamp::parse("2026-11-20T07:31:30Z").expect("a time");
    assert!(events(TimelineSelector::User("s-1".to_owned()), later).is_empty());
}

#[tokio::test]
async fn missing_installation_is_not_created() {
    let folder = tempfile::tempdir().expect("a folder");
    let sources = TimelineSources {
        config: None,
        data_dir: folder.path().join("none"),
        access_log: None,
    };
    let query = TimelineQuery::new(TimelineSelector::User("s".to_owned()), 10);
    let exit = timeline(&sources, &query, &Env::default())
        .await
        .expect_err("no database");
    assert!(
        exit.status() == 64 && exit.message().contains("--data-dir"),
        "{exit}"
    );
    assert!(!folder.path().join("none").exists());
    let all = TimelineQuery::new(TimelineSelector::All, 10);
    let exit = timeline(&sources, &all, &Env::default())
        .await
        .expect_err("no selector");
    assert_eq!(exit.status(), 64);
}
