use super::*;

/// Returns the actions until the session closes.
fn send_bytes(session: &mut SmtpSession, text: &[u8]) -> Vec<SessionAction> {
    let mut input = BytesMut::from(text);
    let mut actions = Vec::new();
    while let Some(action) = session.next(&mut input) {
        actions.push(action);
        if let Some(SessionAction::Close(_)) = actions.last() {
            break;
        }
    }
    actions
}

fn codes(actions: &[SessionAction]) -> Vec<&str> {
    actions
        .iter()
        .map(|action| match action {
            SessionAction::Reply(text) | SessionAction::Close(text) => &text[..3],
            SessionAction::Store(..) => "STORE",
        })
        .collect()
}

const START_OF_MESSAGE: &[u8] =
    b"EHLO me\r\nMAIL FROM:<a@b.test>\r\nRCPT TO:<c@d.test>\r\nDATA\r\n";

/// Returns the stored message, or the reply if it was rejected.
fn message(data: &[u8]) -> Result<Vec<u8>, String> {
    let all = [START_OF_MESSAGE, data].concat();
    let once = send_bytes(&mut SmtpSession::default(), &all).pop();
    // Repeat byte by byte: packet boundaries must not matter.
    let (mut session, mut input, mut last) = (SmtpSession::default(), BytesMut::new(), None);
    for byte in &all {
        input.extend_from_slice(&[*byte]);
        while !matches!(last, Some(SessionAction::Close(_))) {
            let Some(action) = session.next(&mut input) else {
                break;
            };
            last = Some(action);
        }
    }
    assert_eq!(once, last);
    match last {
        Some(SessionAction::Store(_, message)) => Ok(message),
        Some(SessionAction::Reply(text) | SessionAction::Close(text)) => Err(text),
        None => Err("nothing".to_owned()),
    }
}

#[test]
fn pipelined_commands_are_answered_in_order() {
    let text = [
        START_OF_MESSAGE,
        b"Subject: x\r\n\r\nhello\r\n.\r\nRSET\r\nNOOP\r\nVRFY a\r\nQUIT\r\n",
    ]
    .concat();
    let actions = send_bytes(&mut SmtpSession::default(), &text);
    assert_eq!(
        codes(&actions),
        [
            "250", "250", "250", "354", "STORE", "250", "250", "502", "221"
        ]
    );
    let SessionAction::Store(envelope, message) = &actions[4] else {
        panic!("no message")
    };
    assert_eq!(
        (envelope.sender.as_str(), envelope.recipients.as_slice()),
        ("a@b.test", &["c@d.test".to_owned()][..])
    );
    assert_eq!(message, b"Subject: x\r\n\r\nhello\r\n");
}

#[test]
fn text_after_rejected_data_is_parsed_as_commands() {
    let actions = send_bytes(
        &mut SmtpSession::default(),
        b"EHLO me\r\nMAIL FROM:<a@b>\r\nDATA\r\nNOOP\r\n",
    );
    assert_eq!(codes(&actions), ["250", "250", "554", "250"]);
}

#[test]
fn dots_are_unstuffed_at_line_start_only() {
    assert_eq!(
        message(b"..\r\n...a\r\n.b\r\na.b\r\n.\r\n"),
        Ok(b".\r\n..a\r\nb\r\na.b\r\n".to_vec())
    );
    assert_eq!(message(b".\r\n"), Ok(Vec::new()));
}

#[test]
fn bare_line_ends_are_rejected() {
    for smuggled in [
        &b"a\n.\r\nMAIL FROM:<x@y>\r\n.\r\n"[..],
        b"a\r\n.\nb\r\n.\r\n",
        b"a\n.\nb\r\n.\r\n",
        b"a\rb\r\n.\r\n",
    ] {
        let refusal = message(smuggled).expect_err("rejected");
        assert!(refusal.starts_with("550 5.6.11"), "{refusal}");
    }
}

#[test]
fn oversized_message_closes_the_session() {
    let mut session = SmtpSession::default();
    send_bytes(&mut session, START_OF_MESSAGE);
    let line = [vec![b'x'; MAX_LINE_BYTES], b"\r\n".to_vec()].concat();
    let count = MAX_MESSAGE_BYTES / MAX_LINE_BYTES;
    let actions = send_bytes(&mut session, &line.repeat(count));
    assert_eq!(codes(&actions), ["552"]);
}

#[test]
fn malformed_or_misordered_commands_are_rejected() {
    let commands = b"MAIL FROM:<a@b>\r\nEHLO\r\nEHLO me\r\nRCPT TO:<a@b>\r\nDATA\r\nMAIL FROM:a@b\r\n\
        MAIL FROM:<a@b>\r\nMAIL FROM:<a@b>\r\nRCPT TO:<>\r\nRCPT TO:<a@bounce.invalid>\r\nRCPT TO:<a@busy.invalid>\r\nWHAT\r\n";
    let actions = send_bytes(&mut SmtpSession::default(), commands);
    let expected = [
        "503", "501", "250", "503", "503", "501", "250", "503", "501", "550", "451", "500",
    ];
    assert_eq!(codes(&actions), expected);
}

#[test]
fn command_line_requires_crlf_and_is_bounded() {
    for (line, code) in [
        (b"NOOP\nNOOP\r\n".to_vec(), "550"),
        (vec![b'x'; MAX_LINE_BYTES + 1], "500"),
    ] {
        let actions = send_bytes(&mut SmtpSession::default(), &line);
        assert_eq!(codes(&actions), [code]);
    }
}

#[test]
fn session_closes_on_http() {
    assert_eq!(
        codes(&send_bytes(
            &mut SmtpSession::default(),
            b"POST / HTTP/1.1\r\n"
        )),
        ["221"]
    );
}
