use super::*;

fn talk(session: &mut Session, text: &[u8]) -> Vec<Action> {
    let mut input = BytesMut::from(text);
    std::iter::from_fn(|| session.next(&mut input)).collect()
}

fn codes(actions: &[Action]) -> Vec<&str> {
    actions
        .iter()
        .map(|action| match action {
            Action::Reply(text) | Action::Close(text) => &text[..3],
            Action::Store(..) => "STORE",
        })
        .collect()
}

const START: &[u8] = b"EHLO me\r\nMAIL FROM:<a@b.test>\r\nRCPT TO:<c@d.test>\r\nDATA\r\n";

/// The stored message, or the reply instead of it.
fn message(data: &[u8]) -> Result<Vec<u8>, String> {
    let mut session = Session::default();
    let all = [START, data].concat();
    let once = talk(&mut session, &all).pop();
    // The same, one byte at a time: where packets end must make no difference.
    let (mut session, mut input, mut last) = (Session::default(), BytesMut::new(), None);
    for byte in &all {
        input.extend_from_slice(&[*byte]);
        while let Some(action) = session.next(&mut input) {
            last = Some(action);
        }
    }
    assert_eq!(once, last);
    match last {
        Some(Action::Store(_, message)) => Ok(message),
        Some(Action::Reply(text) | Action::Close(text)) => Err(text),
        None => Err("nothing".to_owned()),
    }
}

#[test]
fn a_whole_pipelined_conversation_is_answered_in_order() {
    let text = [
        START,
        b"Subject: x\r\n\r\nhello\r\n.\r\nRSET\r\nNOOP\r\nVRFY a\r\nQUIT\r\n",
    ]
    .concat();
    let actions = talk(&mut Session::default(), &text);
    assert_eq!(
        codes(&actions),
        [
            "250", "250", "250", "354", "STORE", "250", "250", "252", "221"
        ]
    );
    let Action::Store(envelope, message) = &actions[4] else {
        panic!("no message")
    };
    assert_eq!(
        (envelope.sender.as_str(), envelope.recipients.as_slice()),
        ("a@b.test", &["c@d.test".to_owned()][..])
    );
    assert_eq!(message, b"Subject: x\r\n\r\nhello\r\n");
}

#[test]
fn what_follows_a_refused_data_is_commands() {
    let actions = talk(
        &mut Session::default(),
        b"EHLO me\r\nMAIL FROM:<a@b>\r\nDATA\r\nNOOP\r\n",
    );
    assert_eq!(codes(&actions), ["250", "250", "554", "250"]);
}

#[test]
fn dots_are_unstuffed_once_and_only_at_the_start_of_a_line() {
    assert_eq!(
        message(b"..\r\n...a\r\n.b\r\na.b\r\n.\r\n"),
        Ok(b".\r\n..a\r\nb\r\na.b\r\n".to_vec())
    );
    assert_eq!(message(b".\r\n"), Ok(Vec::new()));
}

#[test]
fn only_crlf_dot_crlf_ends_a_message_and_bare_line_ends_are_refused() {
    for smuggled in [
        &b"a\n.\r\nMAIL FROM:<x@y>\r\n.\r\n"[..],
        b"a\r\n.\nb\r\n.\r\n",
        b"a\n.\nb\r\n.\r\n",
        b"a\rb\r\n.\r\n",
    ] {
        let refusal = message(smuggled).expect_err("refused");
        assert!(refusal.starts_with("550 5.6.11"), "{refusal}");
    }
}

#[test]
fn long_lines_are_kept_whole() {
    let long = vec![b'x'; 3 * MAX_PARTIAL + 7];
    let sent = [long.as_slice(), b"\r\n.", &long, b"\r\n.\r\n"].concat();
    let kept = [long.as_slice(), b"\r\n", &long, b"\r\n"].concat();
    assert_eq!(message(&sent), Ok(kept));
}

#[test]
fn a_message_over_the_limit_is_refused_and_the_conversation_goes_on() {
    let mut session = Session::default();
    talk(&mut session, START);
    let line = [vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
    for _ in 0..=MAX_MESSAGE >> 20 {
        assert!(talk(&mut session, &line).is_empty());
    }
    assert_eq!(codes(&talk(&mut session, b".\r\nNOOP\r\n")), ["552", "250"]);
    let announced = format!("MAIL FROM:<a@b> SIZE={}\r\n", MAX_MESSAGE + 1);
    assert_eq!(codes(&talk(&mut session, announced.as_bytes())), ["552"]);
}

#[test]
fn commands_out_of_order_or_malformed_are_refused() {
    let commands = b"MAIL FROM:<a@b>\r\nEHLO\r\nEHLO me\r\nRCPT TO:<a@b>\r\nDATA\r\nMAIL FROM:a@b\r\nMAIL FROM:<a@b> X=1\r\n\
        MAIL FROM:<a@b>\r\nMAIL FROM:<a@b>\r\nRCPT TO:<>\r\nRCPT TO:<a@bounce.invalid>\r\nRCPT TO:<a@busy.invalid>\r\nWHAT\r\n";
    let actions = talk(&mut Session::default(), commands);
    let expected = [
        "503", "501", "250", "503", "503", "501", "555", "250", "503", "501", "550", "451", "500",
    ];
    assert_eq!(codes(&actions), expected);
}

#[test]
fn a_command_line_needs_crlf_and_has_a_limit() {
    let mut session = Session::default();
    assert_eq!(
        codes(&talk(&mut session, b"NOOP\nNOOP\r\n")),
        ["500", "250"]
    );
    assert!(talk(&mut session, &[b'x'; MAX_COMMAND + 1]).is_empty());
    assert_eq!(
        codes(&talk(&mut session, b"xxx\r\nNOOP\r\n")),
        ["500", "250"]
    );
}

#[test]
fn non_ascii_addresses_need_smtputf8() {
    let text = "EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<ü@d>\r\nRSET\r\nMAIL FROM:<é@b> SMTPUTF8\r\nRCPT TO:<ü@d>\r\n";
    assert_eq!(
        codes(&talk(&mut Session::default(), text.as_bytes())),
        ["250", "250", "553", "250", "250", "250"]
    );
}

#[test]
fn too_many_errors_and_a_browser_are_shown_the_door() {
    let actions = talk(&mut Session::default(), "X\r\n".repeat(20).as_bytes());
    assert_eq!(
        actions.last(),
        Some(&Action::Close("421 4.7.0 Too many errors".to_owned()))
    );
    assert_eq!(
        codes(&talk(&mut Session::default(), b"POST / HTTP/1.1\r\n")),
        ["221"]
    );
}
