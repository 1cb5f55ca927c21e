use super::*;

/// A folder with configuration files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("creates");
        std::fs::write(path, text).expect("writes");
    }

    fn files(&self) -> ConfigFiles {
        let path = self.0.path().join("main.toml");
        ConfigFiles::read(&path, &["route", "upstream"]).expect("reads")
    }

    /// Reads the paths of all routes and the names of all upstreams. Returns the mistakes without
    /// the folder.
    fn read(&self) -> Result<(Vec<String>, Vec<String>), String> {
        let read = self.files().decode(|root| {
            let _patterns = root.list("include", |field| field.text(1..=100));
            let routes = root.list("route", |field| {
                field.object(|route| route.required("path", |field| field.text(1..=100)))
            });
            let upstreams = root.section("upstream", |section| {
                Some(section.entries(|name, field| field.boolean().map(|_| name.to_owned())))
            });
            Some((routes, upstreams.unwrap_or_default()))
        });
        let folder = format!("{}/", self.0.path().display());
        read.map_err(|exit| exit.message().replace(&folder, ""))
    }
}

const MAIN: &str = "include = [\"conf.d/*.toml\"]\n[[route]]\npath = \"/main\"\n";

#[test]
fn included_tables_are_added_in_the_order_of_names() {
    let folder = Folder::new(&[
        ("main.toml", MAIN),
        (
            "conf.d/b.toml",
            "[[route]]\npath = \"/b\"\n[upstream]\nb = true\n",
        ),
        (
            "conf.d/a.toml",
            "[upstream]\na = true\n[[route]]\npath = \"/a\"\n",
        ),
        ("conf.d/.a.toml", "not TOML"),
        ("conf.d/a.toml~", "not TOML"),
        ("conf.d/deeper/a.toml", "not TOML"),
    ]);
    let (routes, upstreams) = folder.read().expect("reads");
    assert_eq!(routes, ["/main", "/a", "/b"]);
    assert_eq!(upstreams, ["a", "b"]);
    let names: Vec<String> = folder.files().included().map(str::to_owned).collect();
    assert!(names[0].ends_with("conf.d/a.toml"), "{names:?}");
    assert_eq!(names.len(), 2);
}

#[test]
fn mistake_in_included_file_has_its_place() {
    let folder = Folder::new(&[
        ("main.toml", MAIN),
        ("conf.d/a.toml", "[[route]]\npath = \"/a\"\n"),
        ("conf.d/b.toml", "\n[[route]]\npath = 1\nother = 2\n"),
    ]);
    assert_eq!(
        folder.read().expect_err("mistakes"),
        "conf.d/b.toml:3: route.0.path: must be a string, not an integer\n\
         conf.d/b.toml:4: route.0.other: is not a known field"
    );
}

#[test]
fn duplicate_is_rejected_with_both_places() {
    let folder = Folder::new(&[
        ("main.toml", &format!("{MAIN}[upstream]\none = true\n")),
        ("conf.d/a.toml", "\n[upstream]\none = false\n"),
    ]);
    assert_eq!(
        folder.read().expect_err("a duplicate"),
        "conf.d/a.toml:3: upstream.one: is defined twice (main.toml:5)"
    );
}

#[test]
fn unusable_included_file_is_rejected() {
    for (files, said) in [
        (
            vec![("main.toml", MAIN), ("conf.d/a.toml", "include = []\n")],
            "conf.d/a.toml:1: include: an included file must not include files",
        ),
        (
            vec![
                ("main.toml", MAIN),
                ("conf.d/a.toml", "\n[limits]\nx = 1\n"),
            ],
            "conf.d/a.toml:2: limits: an included file may contain route, upstream only",
        ),
        (
            vec![("main.toml", MAIN), ("conf.d/a.toml", "route = 1\n")],
            "conf.d/a.toml:1: route: must be an array, not an integer (main.toml:2)",
        ),
        (
            vec![
                ("main.toml", MAIN),
                ("conf.d/a.toml", "[[route]]\npath = \n"),
            ],
            "conf.d/a.toml:2: string values must be quoted, expected literal string",
        ),
        (
            vec![("main.toml", MAIN), ("conf.d/x.toml/y", "")],
            "main.toml:1: include.0: conf.d/x.toml: is not a regular file",
        ),
        (
            vec![("main.toml", "include = [\"a.toml\"]\n")],
            "main.toml:1: include.0: a.toml: there is no such file",
        ),
        (
            vec![("main.toml", "include = [\n\"a*.toml\",\n\"*.toml\"]\n")],
            "main.toml:3: include.1: main.toml: must not include itself",
        ),
        (
            vec![("main.toml", "include = [\"/**/x\"]\n")],
            "main.toml:1: include.0: /**/x: a wildcard must be in the name of the file",
        ),
        (
            vec![("main.toml", "include = [\"***\"]\n")],
            "main.toml:1: include.0: is not a pattern: ",
        ),
        (
            vec![("main.toml", "include = \"a.toml\"\n")],
            "main.toml:1: include: must be an array, not a string",
        ),
        (
            vec![("main.toml", "include = [7]\n")],
            "main.toml:1: include.0: must be a string, not an integer",
        ),
    ] {
        let folder = Folder::new(&files);
        let found = folder.read().expect_err(said);
        assert!(
            found.starts_with(said) && found.lines().count() == 1,
            "{found}"
        );
    }
}

#[test]
fn hash_covers_the_included_files() {
    let folder = Folder::new(&[("main.toml", MAIN)]);
    let mut hashes = vec![folder.files().hash()];
    for (name, text) in [
        ("conf.d/a.toml", ""),
        ("conf.d/a.toml", "[[route]]\npath = \"/a\"\n"),
        ("conf.d/b.toml", ""),
        ("other.toml", ""),
    ] {
        folder.write(name, text);
        hashes.push(folder.files().hash());
    }
    let last = hashes.pop();
    assert_eq!(last, hashes.last().copied(), "a file that is not included");
    hashes.dedup();
    assert_eq!(hashes.len(), 4);
}

#[test]
fn file_of_several_patterns_is_included_once() {
    let main = "include = [\"a.toml\", \"?.toml\", \"./a.toml\"]\n";
    let folder = Folder::new(&[
        ("main.toml", main),
        ("a.toml", "[[route]]\npath = \"/a\"\n"),
    ]);
    assert_eq!(folder.read().expect("reads").0, ["/a"]);
}
