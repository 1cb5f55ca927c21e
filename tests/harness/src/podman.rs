//! Containers: podman builds the image of the repository and runs its processes.
//!
//! The base images are a file system of Debian, and instead of compiling, the build stages copy the
//! programs of the test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::repository;
use crate::systems::{Network, PROGRAMS, copy_programs, succeed, system};

/// Takes the place of `cargo build`.
const CARGO: &str = "#!/bin/sh\nmkdir -p target/production && cp /built/* target/production/\n";
/// Options of a machine for tests, which may lack a service manager and the privilege to raise
/// limits.
const LIMITS: [&str; 4] = [
    "--ulimit",
    "nofile=4096:4096",
    "--ulimit",
    "nproc=4096:4096",
];

/// podman with storage of its own, and an image. Image and volumes are removed when it is dropped.
#[derive(Debug)]
pub struct Podman {
    folder: PathBuf,
    id: String,
}

/// A container to be started.
#[derive(Debug, Default)]
pub struct Options {
    /// Words after the image; empty for the command of the image.
    pub command: Vec<String>,
    /// Variables.
    pub environment: BTreeMap<String, String>,
    /// Volumes as in compose files: `NAME:FOLDER`, `NAME:FOLDER:ro`, or `FOLDER`.
    pub volumes: Vec<String>,
    /// Names for 127.0.0.1.
    pub hosts: Vec<String>,
}

/// A container, removed when dropped. After a panic, its log is printed.
#[derive(Debug)]
pub struct Container<'a> {
    podman: &'a Podman,
    id: String,
}

impl Podman {
    /// Builds a stage of the Dockerfile; the default one without a name.
    pub fn build(target: Option<&str>) -> Self {
        let podman = Self {
            folder: system("podman"),
            id: format!("postern-{}", uuid::Uuid::new_v4().simple()),
        };
        std::fs::create_dir_all(&podman.folder).expect("the folder is created");
        podman.import_base();
        let folder = tempfile::tempdir().expect("a folder");
        copy_programs(&PROGRAMS, &folder.path().join("built"));
        let cargo = folder.path().join("cargo");
        std::fs::write(&cargo, CARGO).expect("the file is written");
        let _output = succeed(Command::new("chmod").arg("755").arg(&cargo));
        let mount = |from: &Path, to: &str| format!("--volume={}:{to}:ro", from.display());
        let mut build = podman.command(&["build", "--pull-never", "--layers=false"]);
        build
            .args(LIMITS)
            .args([
                "--format",
                "docker",
                "--network",
                "host",
                "--tag",
                &podman.id,
            ])
            .arg(mount(&folder.path().join("built"), "/built"))
            .arg(mount(&cargo, "/usr/local/bin/cargo"))
            .arg("--file")
            .arg(repository().join("conf/deploy/Dockerfile"));
        if let Some(target) = target {
            build.args(["--target", target]);
        }
        let _output = succeed(build.arg(repository()));
        podman
    }

    /// Makes the base images of a file system.
    fn import_base(&self) {
        let base = "localhost/debian:bookworm-slim";
        let exists = self.command(&["image", "exists", base]).status();
        if !exists.is_ok_and(|status| status.success()) {
            let archive = tempfile::NamedTempFile::new().expect("a file");
            let mut tar = Command::new("tar");
            tar.arg("--create").arg("--file").arg(archive.path());
            let _output = succeed(tar.arg("--directory").arg(system("bookworm")).arg("."));
            let _output = succeed(self.command(&["import"]).arg(archive.path()).arg(base));
        }
        let builder = "localhost/rust:1.95-slim-bookworm";
        let _output = succeed(&mut self.command(&["tag", base, builder]));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        let folders = [
            ("--root", "storage"),
            ("--runroot", "run"),
            ("--tmpdir", "tmp"),
        ];
        for (option, folder) in folders {
            command.arg(option).arg(self.folder.join(folder));
        }
        command.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs"]);
        command.args(["--events-backend", "file"]).args(arguments);
        command
    }

    /// Starts a container of the image in a network. As on Kubernetes, the root file system is
    /// read-only and there are no capabilities.
    pub fn start(&self, options: &Options, network: &Network) -> Container<'_> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("environment");
        let mut variables = String::new();
        for (name, value) in &options.environment {
            let _written = writeln!(variables, "{name}={value}");
        }
        std::fs::write(&file, variables).expect("the file is written");
        let mut run = self.command(&["run", "--detach", "--read-only", "--read-only-tmpfs=false"]);
        run.args(LIMITS)
            .args(["--cap-drop", "all", "--security-opt", "no-new-privileges"])
            .arg(format!("--network=ns:{}", network.path().display()))
            .arg("--env-file")
            .arg(&file);
        for name in &options.hosts {
            run.arg(format!("--add-host={name}:127.0.0.1"));
        }
        for volume in &options.volumes {
            let volume = match volume.contains(':') {
                true => format!("{}-{volume}", self.id),
                false => volume.clone(),
            };
            run.args(["--volume", &volume]);
        }
        let run = run.arg(&self.id).args(&options.command);
        // Warnings that there is no service manager for health checks are on standard error.
        Container {
            podman: self,
            id: succeed(run).trim().to_owned(),
        }
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _removed = self.command(&["rmi", "--force", &self.id]).output();
        let filter = format!("name={}", self.id);
        let list = ["volume", "ls", "--quiet", "--filter", &filter];
        if let Ok(volumes) = self.command(&list).output() {
            for volume in String::from_utf8_lossy(&volumes.stdout).lines() {
                let _removed = self.command(&["volume", "rm", "--force", volume]).output();
            }
        }
    }
}

impl Container<'_> {
    /// Returns a field of `podman inspect`, such as `.State.ExitCode`.
    pub fn inspect(&self, field: &str) -> String {
        let format = format!("--format={{{{{field}}}}}");
        let output = succeed(&mut self.podman.command(&["inspect", &format, &self.id]));
        output.trim().to_owned()
    }

    /// Runs the health check of the image and returns whether it succeeds.
    pub fn is_healthy(&self) -> bool {
        let mut check = self.podman.command(&["healthcheck", "run", &self.id]);
        let check = check.output();
        check.is_ok_and(|output| output.status.success())
    }

    /// Returns whether a command in the container succeeds.
    pub fn succeeds(&self, command: &[&str]) -> bool {
        let mut run = self.podman.command(&["exec", &self.id]);
        let output = run.args(command).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// Stops it and returns its exit status.
    pub fn stop(&self) -> String {
        let _output = succeed(&mut self.podman.command(&["stop", "--time", "50", &self.id]));
        self.inspect(".State.ExitCode")
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = self.podman.command(&["logs", &self.id]).output();
            let logs = logs.map(|output| [output.stdout, output.stderr].concat());
            let _written = std::io::stderr().write_all(&logs.unwrap_or_default());
        }
        let remove = ["rm", "--force", "--volumes", &self.id];
        let _removed = self.podman.command(&remove).output();
    }
}
