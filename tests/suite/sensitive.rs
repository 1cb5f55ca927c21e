//! The scan of logs finds what must not be logged.

use postern_harness::sensitive::scan;

#[test]
fn scan_finds_planted_values_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("written");
    };
    write(
        "1.values",
        "{\"kind\":\"password\",\"value\":\"Correct horse\"}\n{\"kind\":\"email\",\"value\":\"ada@example.com\"}\n",
    );
    write(
        "2.values",
        "{\"kind\":\"token\",\"value\":\"eyJ.abc.def\"}\n",
    );
    write("postern-auth.log", "started\nsign-in of a user\n");
    assert_eq!(scan(folder.path()), (vec![], 3, 2));
    write("postern-notify.log", "ok\nsent to ada@example.com: 250\n");
    write("access.out", "{\"path\":\"/x?token=eyJ.abc.def\"}\n");
    let (findings, ..) = scan(folder.path());
    let found: Vec<_> = findings
        .iter()
        .map(|finding| {
            let place = finding.place.rsplit('/').next().unwrap_or_default();
            (place, finding.kind.as_str())
        })
        .collect();
    let expected = [("access.out:1", "token"), ("postern-notify.log:2", "email")];
    assert_eq!(found, expected);
}
