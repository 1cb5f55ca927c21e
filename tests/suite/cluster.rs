//! The test of a complete installation under faults: a short run, and what its checker finds.

use std::path::Path;

use postern_tests::cluster::checker::{CONCURRENT_DELIVERIES, check};
use postern_tests::cluster::faults::{KINDS, Schedule};
use postern_tests::cluster::history::{Affected, Event, Record};
use postern_tests::cluster::violation::Violation;
use postern_tests::note;
use postern_tests::program::Program;

/// End of the requests in the histories of these tests.
const QUIET_MS: u64 = 100_000;

fn record(start_ms: u64, end_ms: u64, event: Event) -> Record {
    Record {
        start_ms,
        end_ms,
        event,
    }
}

fn submit(at_ms: u64, id: &str) -> Record {
    let event = Event::Submit {
        key: format!("key of {id}"),
        priority: "NORMAL".to_owned(),
        id: Some(id.to_owned()),
        status: 201,
    };
    record(at_ms, at_ms + 5, event)
}

fn deliver(at_ms: u64, id: &str) -> Record {
    record(at_ms, at_ms, Event::Deliver { id: id.to_owned() })
}

fn state(id: &str, state: &str) -> Record {
    let event = Event::FinalStatus {
        id: id.to_owned(),
        state: state.to_owned(),
    };
    record(QUIET_MS + 1, QUIET_MS + 1, event)
}

fn sent(at_ms: u64, id: &str) -> [Record; 3] {
    [
        submit(at_ms, id),
        deliver(at_ms + 20, id),
        state(id, "SENT"),
    ]
}

fn fault(start_ms: u64, affects: Affected) -> Record {
    let fault = "kill".to_owned();
    record(start_ms, start_ms + 500, Event::Fault { fault, affects })
}

fn exchange(token: &str, status: u16) -> Record {
    let token = token.to_owned();
    record(10, 20, Event::Exchange { token, status })
}

fn refresh(at_ms: u64, token: &str, status: u16) -> Record {
    let event = Event::Refresh {
        sign_in: 7,
        token: token.to_owned(),
        status,
    };
    record(at_ms, at_ms + 5, event)
}

/// Returns the violations of a history whose run ended well.
fn violations(records: impl IntoIterator<Item = Record>) -> Vec<Violation> {
    let ended = record(QUIET_MS, QUIET_MS, Event::Quiet);
    let last = sent(QUIET_MS - 100, "last");
    let history: Vec<Record> = records.into_iter().chain(last).chain([ended]).collect();
    check(&history)
}

#[test]
fn checker_accepts_a_history_without_violations() {
    let mut records = Vec::new();
    for number in 0..100 {
        records.extend(sent(1_000 + number * 10, &format!("n{number}")));
    }
    // A delivery that a kill explains, and a token that is refused the second time.
    records.extend(sent(50_000, "repeated"));
    records.push(deliver(60_000, "repeated"));
    records.push(fault(50_010, Affected::Notify));
    records.push(exchange("t", 401));
    records.push(record(
        QUIET_MS - 50,
        QUIET_MS - 40,
        exchange("t", 200).event,
    ));
    assert_eq!(violations(records), []);
}

#[test]
fn checker_finds_lost_and_repeated_notifications() {
    let lost = [submit(10, "a"), state("a", "QUEUED")];
    assert!(matches!(&violations(lost)[..], [Violation::Lost { id, .. }] if id == "a"));
    let never_called = [submit(10, "a"), state("a", "SENT")];
    assert!(matches!(
        &violations(never_called)[..],
        [Violation::Lost { .. }]
    ));
    let mut twice = sent(10, "a").to_vec();
    twice.push(deliver(40, "a"));
    assert!(matches!(
        &violations(twice)[..],
        [Violation::TooManyDeliveries {
            deliveries: 2,
            faults: 0,
            ..
        }]
    ));
    let mut again = sent(10, "a").to_vec();
    let mut other = sent(90, "b");
    if let Event::Submit { key, .. } = &mut other[0].event {
        "key of a".clone_into(key);
    }
    again.extend(other);
    assert!(matches!(
        &violations(again)[..],
        [Violation::KeyAcceptedTwice { .. }]
    ));
}

#[test]
fn checker_finds_notifications_that_nobody_submitted() {
    let mut records = sent(10, "a").to_vec();
    records.push(deliver(60, "b"));
    assert_eq!(
        violations(records.clone()),
        [Violation::Unaccounted {
            delivered: 1,
            unanswered: 0
        }]
    );
    let unanswered = Event::Submit {
        key: "lost".to_owned(),
        priority: "NORMAL".to_owned(),
        id: None,
        status: 0,
    };
    records.push(record(50, 90, unanswered));
    assert_eq!(violations(records), []);
}

#[test]
fn checker_finds_a_wrong_order() {
    let count = CONCURRENT_DELIVERIES + 2;
    let number = |position: usize| u64::try_from(position).expect("a small number");
    let reversed = |records: &mut Vec<Record>| {
        for position in 0..count {
            let id = format!("n{position}");
            records.push(submit(20_000 + number(position) * 10, &id));
            records.push(deliver(30_000 - number(position) * 10, &id));
            records.push(state(&id, "SENT"));
        }
    };
    let mut records = Vec::new();
    reversed(&mut records);
    let found = violations(records.clone());
    assert!(
        matches!(&found[..], [Violation::OutOfOrder { id, overtaken_by }] if id == "n0" && *overtaken_by == count - 1),
        "{found:?}"
    );
    // A fault may delay what a process has claimed.
    records.push(fault(15_000, Affected::Notify));
    assert_eq!(violations(records), []);
}

#[test]
fn checker_finds_reused_tokens_and_foreign_responses() {
    let twice = [exchange("t", 200), exchange("t", 200)];
    assert!(matches!(
        &violations(twice)[..],
        [
            Violation::TokenExchangedTwice { .. },
            Violation::NotRecovered { .. }
        ]
    ));
    let rejected = [
        refresh(10, "a", 200),
        refresh(20, "b", 401),
        refresh(QUIET_MS - 50, "c", 200),
    ];
    assert_eq!(
        violations(rejected),
        [Violation::RefreshRejected { sign_in: 7 }]
    );
    // The response may have been lost.
    let late = [
        refresh(10, "a", 0),
        refresh(40_000, "a", 401),
        refresh(QUIET_MS - 50, "c", 200),
    ];
    assert_eq!(violations(late), []);
    let foreign = Event::Read {
        request: "GET /auth/me".to_owned(),
        expected: "ada".to_owned(),
        answered: Some("eve".to_owned()),
        status: 200,
    };
    let foreign = record(QUIET_MS - 50, QUIET_MS - 40, foreign);
    assert!(matches!(
        &violations([foreign])[..],
        [Violation::WrongResponse { .. }]
    ));
}

#[test]
fn checker_rejects_a_history_that_proves_nothing() {
    assert!(matches!(&check(&[])[..], [Violation::TooLittle { .. }]));
    let crashed = Event::Exit {
        process: "auth-1".to_owned(),
        status: None,
    };
    assert!(matches!(
        &violations([record(5, 10, crashed)])[..],
        [Violation::UncleanExit { .. }]
    ));
    let late = violations([fault(QUIET_MS - 2_000, Affected::Cache)]);
    assert!(
        matches!(&late[..], [Violation::TooLittle { .. }]),
        "{late:?}"
    );
}

#[test]
fn schedule_of_a_seed_is_always_the_same() {
    let faults = |seed| {
        let schedule = Schedule::new(seed, KINDS.to_vec(), std::time::Duration::from_secs(10));
        schedule.take(200).collect::<Vec<_>>()
    };
    assert_eq!(faults(3), faults(3));
    assert_ne!(faults(3), faults(4));
    let texts: Vec<String> = faults(3)
        .iter()
        .map(|(_, fault)| fault.to_string())
        .collect();
    for kind in KINDS {
        assert!(texts.iter().any(|text| text.starts_with(kind)), "{kind}");
    }
}

#[tokio::test]
async fn cluster_keeps_its_guarantees_in_a_short_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // PostgreSQL runs as another user if the tests run as root.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("the folder's permissions can be set");
    let options = "--seed 2 --seconds 30 --interval 5 --rate 4 --folder run";
    let path = Program::path_of_workspace("postern-test-cluster")
        .display()
        .to_string();
    let program = if can_create_namespaces() {
        Program::at("/usr/bin/unshare".into(), folder.path())
            .arg("--net")
            .arg("--mount")
            .arg("bash")
            .arg("-c")
            .arg("ip link set lo up && exec \"$@\"")
            .arg("cluster")
            .arg(path)
    } else {
        Program::at(path.into(), folder.path())
    };
    let program = program.env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    let program = options.split(' ').fold(program, Program::arg);
    let ended = program.run_for(std::time::Duration::from_secs(240)).await;
    let last: Vec<&str> = ended.stdout.lines().rev().take(2).collect();
    note(&format!("cluster: {}", last.join("; ")));
    assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
}

/// Returns whether this process may create network and mount namespaces: as root, and not in a container.
fn can_create_namespaces() -> bool {
    let probe = std::process::Command::new("unshare")
        .args(["--net", "--mount", "true"])
        .output();
    Path::new("/usr/sbin/nft").exists() && probe.is_ok_and(|output| output.status.success())
}

#[test]
fn planted_bugs_still_apply_to_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = std::fs::read_to_string(root.join("docs/cluster-test.md")).expect("a document");
    let files = std::fs::read_dir(root.join("tests/bugs")).expect("patches");
    let mut count = 0;
    for file in files {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a patch");
        for field in ["Package", "Run", "Finds"] {
            let line = format!("\n{field}: ");
            assert!(text.contains(&line), "{}: no {field}", path.display());
        }
        let bug = path.file_stem().expect("a name").to_string_lossy();
        assert!(document.contains(&format!("| `{bug}` |")), "{bug}: no row");
        // As GNU patch does: other lines of the files may have moved.
        let check = std::process::Command::new("patch")
            .args(["--dry-run", "--strip", "1", "--silent", "--input"])
            .arg(path.canonicalize().expect("a path"))
            .current_dir(&root)
            .output()
            .expect("patch runs");
        let said = [check.stdout, check.stderr].concat();
        assert!(
            check.status.success(),
            "{}: {}",
            path.display(),
            String::from_utf8_lossy(&said)
        );
        count += 1;
    }
    assert!(count >= 6, "{count}");
}
