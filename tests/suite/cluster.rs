//! The test of a complete installation under faults: a short run, and what its checker finds.

use std::path::Path;

use postern_harness::cluster::checker::{CONCURRENT_DELIVERIES, check};
use postern_harness::cluster::faults::{KINDS, Schedule};
use postern_harness::cluster::history::{Affected, Event, Record};
use postern_harness::cluster::violation::Kind;
use postern_harness::note;
use postern_harness::paths::{read, repository};
use postern_harness::process::Program;
use postern_harness::stores::open_folder;
use postern_harness::systems::succeed;

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
    fault_named("kill", start_ms, affects)
}

fn fault_named(name: &str, start_ms: u64, affects: Affected) -> Record {
    let fault = format!("{name} notify 1");
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

/// Returns what is violated in a history whose run ended well.
fn violations(records: impl IntoIterator<Item = Record>) -> Vec<Kind> {
    let ended = record(QUIET_MS, QUIET_MS, Event::Quiet);
    let last = sent(QUIET_MS - 100, "last");
    let history: Vec<Record> = records.into_iter().chain(last).chain([ended]).collect();
    kinds(&history)
}

fn kinds(history: &[Record]) -> Vec<Kind> {
    check(history).iter().map(|found| found.kind).collect()
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
    let exchanged = exchange("t", 200).event;
    records.push(record(QUIET_MS - 50, QUIET_MS - 40, exchanged));
    assert_eq!(violations(records), []);
}

#[test]
fn checker_finds_lost_and_repeated_notifications() {
    let lost = [submit(10, "a"), state("a", "QUEUED")];
    assert_eq!(violations(lost), [Kind::Lost]);
    let never_called = [submit(10, "a"), state("a", "SENT")];
    assert_eq!(violations(never_called), [Kind::Lost]);
    let mut twice = sent(10, "a").to_vec();
    twice.push(deliver(40, "a"));
    assert_eq!(violations(twice.clone()), [Kind::TooManyDeliveries]);
    // A process that is asked to stop completes its calls.
    twice.push(fault_named("restart", 15, Affected::Notify));
    assert_eq!(violations(twice), [Kind::TooManyDeliveries]);
    let mut again = sent(10, "a").to_vec();
    let mut other = sent(90, "b");
    if let Event::Submit { key, .. } = &mut other[0].event {
        "key of a".clone_into(key);
    }
    again.extend(other);
    assert_eq!(violations(again), [Kind::KeyAcceptedTwice]);
}

#[test]
fn checker_finds_notifications_that_nobody_submitted() {
    let mut records = sent(10, "a").to_vec();
    records.push(deliver(60, "b"));
    assert_eq!(violations(records.clone()), [Kind::Unaccounted]);
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
    let count = u64::try_from(CONCURRENT_DELIVERIES).expect("a small number") + 2;
    let mut records = Vec::new();
    for position in 0..count {
        let id = format!("n{position}");
        records.push(submit(20_000 + position * 10, &id));
        records.push(deliver(30_000 - position * 10, &id));
        records.push(state(&id, "SENT"));
    }
    assert_eq!(violations(records.clone()), [Kind::OutOfOrder]);
    // A fault may delay what a process has claimed.
    records.push(fault(15_000, Affected::Notify));
    assert_eq!(violations(records), []);
}

#[test]
fn checker_finds_reused_tokens_and_foreign_responses() {
    let twice = [exchange("t", 200), exchange("t", 200)];
    let expected = [Kind::TokenExchangedTwice, Kind::NotRecovered];
    assert_eq!(violations(twice), expected);
    let last = refresh(QUIET_MS - 50, "c", 200);
    let rejected = [refresh(10, "a", 200), refresh(20, "b", 401), last.clone()];
    assert_eq!(violations(rejected), [Kind::RefreshRejected]);
    // The response may have been lost.
    let late = [refresh(10, "a", 0), refresh(40_000, "a", 401), last];
    assert_eq!(violations(late), []);
    let foreign = Event::Read {
        request: "GET /auth/me".to_owned(),
        expected: "ada".to_owned(),
        answered: Some("eve".to_owned()),
        status: 200,
    };
    let foreign = record(QUIET_MS - 50, QUIET_MS - 40, foreign);
    assert_eq!(violations([foreign]), [Kind::WrongResponse]);
}

#[test]
fn checker_rejects_a_history_that_proves_nothing() {
    assert_eq!(kinds(&[]), [Kind::TooLittle]);
    let crashed = Event::Exit {
        process: "auth-1".to_owned(),
        status: None,
    };
    assert_eq!(violations([record(5, 10, crashed)]), [Kind::UncleanExit]);
    let late = violations([fault(QUIET_MS - 2_000, Affected::Cache)]);
    assert_eq!(late, [Kind::TooLittle]);
}

#[test]
fn schedule_of_a_seed_is_always_the_same() {
    let faults = |seed| {
        let schedule = Schedule::new(seed, KINDS.to_vec(), std::time::Duration::from_secs(10));
        schedule.take(200).collect::<Vec<_>>()
    };
    assert_eq!(faults(3), faults(3));
    assert_ne!(faults(3), faults(4));
    let texts = faults(3).into_iter().map(|(_, fault)| fault.to_string());
    let texts: Vec<String> = texts.collect();
    for kind in KINDS {
        assert!(texts.iter().any(|text| text.starts_with(kind)), "{kind}");
    }
}

#[tokio::test]
async fn cluster_keeps_its_guarantees_under_faults() {
    let folder = open_folder();
    let options = "--seed 2 --seconds 120 --interval 5 --rate 4 --folder run";
    let path = Program::path_of_workspace("postern-test-cluster");
    let path = path.display().to_string();
    let program = if can_create_namespaces() {
        let script = "ip link set lo up && exec \"$@\"";
        Program::at("/usr/bin/unshare".into(), folder.path())
            .args(["--net", "--mount", "bash", "-c", script, "cluster", &path])
    } else {
        Program::at(path.into(), folder.path())
    };
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let program = program.env("PATH", path);
    let program = program.args(options.split(' '));
    let ended = program.run_for(std::time::Duration::from_secs(360)).await;
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
    let (root, document) = (repository(), read("docs/cluster-test.md"));
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
        let mut check = std::process::Command::new("patch");
        check.args(["--dry-run", "--strip", "1", "--silent", "--input"]);
        let input = path.canonicalize().expect("a path");
        let _output = succeed(check.arg(input).current_dir(&root));
        count += 1;
    }
    assert!(count >= 6, "{count}");
}
