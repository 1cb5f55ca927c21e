use std::path::PathBuf;

use super::*;

fn shipped() -> Templates {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../conf/templates");
    Templates::load(&folder, Locale::parse("en").expect("tag"))
        .expect("the shipped templates are valid")
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::create_dir(folder.path().join("t")).expect("folder");
    for (name, text) in files {
        std::fs::write(folder.path().join("t").join(name), text).expect("file");
    }
    folder
}

fn load(files: &[(&str, &str)]) -> Result<Templates, String> {
    Templates::load(folder(files).path(), Locale::parse("en").expect("tag"))
}

fn variables(json: &Value) -> Map<String, Value> {
    json.as_object().expect("object").clone()
}

fn name(text: &str) -> TemplateName {
    TemplateName::parse(text).expect("name")
}

#[test]
fn welcome_template_exists_for_every_channel_and_locale() {
    let templates = shipped();
    let ada = variables(&serde_json::json!({"name": "Ada"}));
    for channel in Channel::ALL {
        for locale in ["en", "de"] {
            let locale = Locale::parse(locale).expect("tag");
            let found = templates
                .find(&name("welcome"), channel, Some(&locale))
                .expect("a shipped template");
            assert_eq!(found.locale(), &locale);
            assert_eq!(found.missing(&Map::new()), ["name"]);
            match found
                .render(&ada, VariableAuthor::Service)
                .expect("renders")
            {
                MessageContent::Email {
                    subject,
                    text,
                    html,
                } => {
                    assert!(
                        !subject.is_empty()
                            && text.contains("Ada")
                            && html.expect("HTML").contains("Ada")
                    );
                }
                MessageContent::Sms { text } => assert!(text.contains("Ada")),
                MessageContent::Push { title, body } => {
                    assert!(!title.is_empty() && body.contains("Ada"));
                }
            }
        }
    }
}

#[test]
fn variable_of_one_part_only_is_a_warning() {
    assert_eq!(shipped().warnings().count(), 0);
    let base = [
        ("template.toml", "version = 1"),
        ("email.en.subject", "{{ only_here }}"),
        ("email.en.html", "{{ name }}"),
        ("email.de.subject", "{{ only_here }}"),
        ("email.de.html", "{{ name }}"),
    ];
    for (file, text, expected) in [
        ("email.en.txt", "{{ name }}", vec![]),
        (
            "email.en.txt",
            "{{ nmae }}",
            vec!["`nmae` is used in email.en.txt only"],
        ),
        ("sms.en.txt", "{{ short }}", vec![]),
    ] {
        let templates = load(&[&base[..], &[(file, text)]].concat()).expect("valid");
        let found: Vec<&String> = templates.warnings().map(|(_, text)| text).collect();
        assert_eq!(found, expected, "{file}: {text}");
    }
}

#[test]
fn account_templates_exist_in_both_locales() {
    let templates = shipped();
    let code = serde_json::json!({"code": "04812345"});
    let rows = [
        ("account-confirm", code.clone(), "code"),
        ("account-reset", code, "code"),
        (
            "account-notice",
            serde_json::json!({"event": "new_network"}),
            "event",
        ),
    ];
    for (template, values, variable) in rows {
        let mut texts = Vec::new();
        for locale in ["en", "de"] {
            let locale = Locale::parse(locale).expect("tag");
            let found = templates
                .find(&name(template), Channel::Email, Some(&locale))
                .expect("a shipped template");
            assert_eq!(
                (found.locale(), found.missing(&Map::new())),
                (&locale, vec![variable.to_owned()])
            );
            let rendered = found.render(&variables(&values), VariableAuthor::Service);
            let Ok(MessageContent::Email { text, .. }) = rendered else {
                panic!("{template}")
            };
            assert!(variable != "code" || text.contains("04812345"), "{text}");
            texts.push(text);
        }
        assert_ne!(texts[0], texts[1], "{template}");
    }
}

#[test]
fn locale_falls_back_to_language_and_default() {
    let templates = shipped();
    let used = |tag: &str| {
        let wanted = Locale::parse(tag);
        let found = templates
            .find(&name("welcome"), Channel::Sms, wanted.as_ref())
            .expect("a shipped template");
        found.locale().as_str().to_owned()
    };
    assert_eq!((used("de-AT").as_str(), used("fr").as_str()), ("de", "en"));
    assert_eq!(
        templates.find(&name("nope"), Channel::Sms, None).err(),
        Some(TemplateLookupError::NoSuchTemplate)
    );
}

#[test]
fn variables_are_data_and_html_is_escaped() {
    let templates = load(&[
        ("template.toml", "version = 3"),
        ("email.en.subject", "Hello {{ name }}"),
        (
            "email.en.html",
            "<p>Hello {{ name }}</p><ul><li>{{ order.total }}</li></ul>",
        ),
    ])
    .expect("valid templates");
    let found = templates
        .find(&name("t"), Channel::Email, None)
        .expect("a variant");
    assert_eq!(found.version(), 3);
    assert_eq!(
        found.missing(&variables(&serde_json::json!({"name": 1, "order": {}}))),
        ["order.total"]
    );
    let nothing = variables(&serde_json::json!({"name": null, "order": {"total": null}}));
    assert_eq!(found.missing(&nothing), ["name", "order.total"]);
    for unprintable in [serde_json::json!({"a": 1}), serde_json::json!(["a"])] {
        let told = variables(&serde_json::json!({"name": unprintable, "order": {"total": 1}}));
        assert!(
            found.render(&told, VariableAuthor::Service).is_err(),
            "{told:?}"
        );
    }
    let evil = variables(&serde_json::json!({
        "name": "<script>{{ 7*7 }}</script>\r\nBcc: x@y.z", "order": {"total": "{% for %}"}
    }));
    let MessageContent::Email {
        subject,
        text,
        html,
    } = found
        .render(&evil, VariableAuthor::Service)
        .expect("renders")
    else {
        panic!("e-mail")
    };
    assert_eq!(subject, "Hello <script>{{ 7*7 }}</script>  Bcc: x@y.z");
    assert!(html.expect("HTML").contains("&lt;script&gt;{{ 7*7 }}"));
    assert_eq!(
        text,
        "Hello <script>{{ 7*7 }}</script> Bcc: x@y.z\n\n- {% for %}\n"
    );
}

#[test]
fn rendering_is_bounded_in_steps_and_bytes() {
    let templates = load(&[
        ("template.toml", "version = 1"),
        (
            "sms.en.txt",
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        ),
        ("push.en.title", "{{ name * 600 }}"),
        ("push.en.txt", "x"),
    ])
    .expect("valid templates");
    let ada = variables(&serde_json::json!({"name": "abc"}));
    let error = |channel| {
        templates
            .find(&name("t"), channel, None)
            .expect("a variant")
            .render(&ada, VariableAuthor::Service)
            .expect_err("rendering fails")
            .to_string()
    };
    assert!(
        error(Channel::Sms).contains("fuel"),
        "{}",
        error(Channel::Sms)
    );
    assert!(
        error(Channel::Push).contains("more than 512 bytes"),
        "{}",
        error(Channel::Push)
    );
}

#[test]
fn invalid_template_set_is_rejected_with_all_errors() {
    let refused = load(&[
        ("template.toml", "version = 0\ncolour = 1"),
        ("email.en.html", "x"),
    ])
    .expect_err("invalid templates");
    assert!(
        refused.contains("template.toml:1: version") && refused.contains("template.toml:2: colour"),
        "{refused}"
    );
    let refused = load(&[
        ("template.toml", "version = 1"),
        ("email.en.html", "<a href=\"{{ link }}\">x</a>\n{{ oops"),
        ("sms.xx_.txt", ""),
        ("fax.en.txt", ""),
    ])
    .expect_err("invalid templates");
    for part in [
        "email.en.html:1: href",
        "email.en.html:2:",
        "sms.xx_.txt: is not named",
        "fax.en.txt",
        "lacks email.en.subject",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
}

#[test]
fn url_filter_allows_safe_schemes_only() {
    let templates = load(&[
        ("template.toml", "version = 1"),
        ("email.en.subject", "s"),
        ("email.en.html", "<a href=\"{{ link | url }}\">x</a>"),
    ])
    .expect("valid templates");
    let found = templates
        .find(&name("t"), Channel::Email, None)
        .expect("a variant");
    assert!(
        found
            .render(
                &variables(&serde_json::json!({"link": "https://x.example/a?b=1"})),
                VariableAuthor::Service
            )
            .is_ok()
    );
    for bad in [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,x",
        "x",
    ] {
        assert!(
            found
                .render(
                    &variables(&serde_json::json!({"link": bad})),
                    VariableAuthor::Service
                )
                .is_err(),
            "{bad}"
        );
    }
}

#[test]
fn unfiltered_expression_in_url_attribute_is_rejected() {
    let load_html = |html: &str| {
        load(&[
            ("template.toml", "version = 1"),
            ("email.en.subject", "s"),
            ("email.en.html", html),
        ])
    };
    for good in [
        "<a href='{{ l | url }}'>{{ x }}</a>",
        "<A HREF = \"{{- a | url -}}\">x</A>",
        "<a {% if x %}class=\"{{ y }}\"{% endif %} href=\"https://a.example/\">x</a>",
        "<img alt=\"{{ a }} > {{ b }}\" src=\"{{ a | url }}\">",
        "<td background=\"{{ order.image | url }}\" style=\"color: {{ c }}; background: url(a.png)\">href={{ x }}</td>",
    ] {
        assert_eq!(load_html(good).err(), None, "{good}");
    }
    for bad in [
        "<a href=\"{{ l }}\">",
        "<a href=\"{% if x %}{{ l }}{% endif %}\">",
        "<a href=\"{{ a or b | url }}\">",
        "<a href=\"{{ (a or b) | url }}\">",
        "<a href=\"{{ l | url | upper }}\">",
        "<a href=\"{{ l | url }}{{ m | url }}\">",
        "<a href=\"https://x.example/{{ l }}\">",
        "<a href={{ l | url }}>",
        "<a href{# #}=\"{{ l }}\">",
        "<a {{ l }}>",
        "<a {% if x > 1 %}href=\"{{ l }}\"{% endif %}>",
        "<a title='{{ \"'\" }}>' href='{{ l }}'>",
        "<!--[if mso]><v:rect src=\"{{ l }}\"><![endif]-->",
        "<form action='{{ l }}'>",
        "<button formaction='{{ l }}'>",
        "<img srcset=\"{{ a | url }} 1x, {{ b | url }} 2x\">",
        "<video poster='{{ l }}'>",
        "<td background='{{ l }}'>",
        "<use xlink:href='{{ l }}'/>",
        "<td style=\"background: URL( '{{ l | url }}' )\">",
        "<style>p { background: url({% if x %}{{ l }}{% endif %}) }</style>",
    ] {
        let refused = load_html(&format!("<p>\n{bad}")).expect_err(bad);
        assert!(refused.contains("email.en.html:2: "), "{bad}: {refused}");
    }
}

#[test]
fn plain_text_of_html_keeps_link_targets() {
    let text = |html: &str| text::from_html(html);
    assert_eq!(
        text("<p>Please <a class=x HREF='https://x.example/?a=1&amp;b=2'>confirm </a>now.</p>"),
        "Please confirm (https://x.example/?a=1&b=2) now.\n"
    );
    assert_eq!(
        text("<p title='a > b'>Caf&eacute;<!-- a > b --> &amp;amp; bar</p><style>p > a {}</style>"),
        "Café &amp; bar\n"
    );
    assert_eq!(
        text("<a href=\"https:&#x2f;&#x2f;x.example\">https://x.example</a>"),
        "https://x.example\n"
    );
    assert_eq!(
        text("<a href=\"https://x.example\"><img src=\"y\"></a>"),
        "https://x.example\n"
    );
    assert_eq!(
        text("<a href=\"mailto:a@b.c\">write</a> <a name=x>here</a>"),
        "write here\n"
    );
}

#[test]
fn user_text_is_limited_and_never_a_link() {
    let templates = load(&[
        (
            "template.toml",
            "version = 1\nuser_variables = ['name']\nunverified_addresses = ['email', 'push']",
        ),
        ("email.en.subject", "{{ name }} {{ note }}"),
        (
            "email.en.html",
            "<a href=\"{{ link | url }}\">{{ name }}</a>",
        ),
    ])
    .expect("valid templates");
    let found = templates
        .find(&name("t"), Channel::Email, None)
        .expect("a variant");
    let unverified = |channel| *found.settings().unverified_addresses.get(channel);
    assert_eq!(Channel::ALL.map(unverified), [true, false, true]);
    let told = variables(&serde_json::json!({
        "name": "evil.example", "note": "own.example", "link": "https://x.example/"
    }));
    let MessageContent::Email { subject, html, .. } = found
        .render(&told, VariableAuthor::Service)
        .expect("renders")
    else {
        panic!("an e-mail")
    };
    assert_eq!(subject, "evil. example own.example");
    assert!(html.expect("HTML").contains("\">evil. example<"));
    assert!(
        found.render(&told, VariableAuthor::User).is_err(),
        "a user's text is no link"
    );
    let mistakes = |told: &Value, author| {
        let all = found
            .user_text_mistakes(&variables(told), author)
            .into_iter();
        all.map(|mistake| (mistake.name, mistake.code))
            .collect::<Vec<_>>()
    };
    let long = serde_json::json!({"name": "a".repeat(101), "note": ["x"], "link": "a".repeat(100), "n": 1});
    let (name, note) = (
        ("name".to_owned(), "too_long"),
        ("note".to_owned(), "invalid_type"),
    );
    assert_eq!(
        mistakes(&long, VariableAuthor::Service).as_slice(),
        std::slice::from_ref(&name)
    );
    assert_eq!(mistakes(&long, VariableAuthor::User), [name, note]);
}

#[test]
fn category_is_the_name_unless_given_or_transactional() {
    let with = |settings: &str| {
        let settings = format!("version = 1\n{settings}");
        load(&[("template.toml", &settings), ("sms.en.txt", "x")])
    };
    for (settings, category) in [
        ("", Some("t")),
        ("category = 'news'", Some("news")),
        ("transactional = true", None),
        ("transactional = false", Some("t")),
    ] {
        let templates = with(settings).expect("valid");
        assert_eq!(templates.category("t"), category, "{settings}");
        assert_eq!(templates.categories().into_iter().next(), category);
        assert_eq!(templates.category("deleted"), Some("deleted"));
    }
    for settings in [
        "category = 'No <b>'",
        "category = 'a'\ntransactional = true",
        "unsubscribe = true",
    ] {
        let error = with(settings).expect_err("is rejected");
        assert!(error.contains("template.toml:"), "{error}");
    }
}
