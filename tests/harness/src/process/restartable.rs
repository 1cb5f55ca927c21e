//! A process that a test ends and starts again.

use super::{Ended, Program, Running};

const IS_RUNNING: &str = "the process is running";

/// A process that can be started again with the same configuration.
#[derive(Debug)]
pub struct Process {
    program: Program,
    running: Option<Running>,
}

impl Process {
    /// Starts a program, without waiting until it is ready.
    pub fn start(program: Program) -> Self {
        let running = Some(program.start());
        Self { program, running }
    }

    /// Prepares a program that is not started yet.
    pub fn stopped(program: Program) -> Self {
        let running = None;
        Self { program, running }
    }

    /// Waits until it is ready.
    pub async fn until_ready(&mut self) {
        self.running.as_mut().expect(IS_RUNNING).until_ready().await;
    }

    /// Starts the process, which must not be running, and waits until it is ready.
    pub async fn restart(&mut self) {
        self.running = Some(self.program.start());
        self.until_ready().await;
    }

    /// Returns the running process.
    pub fn running(&self) -> &Running {
        self.running.as_ref().expect(IS_RUNNING)
    }

    /// Returns whether it is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Stops the process with SIGTERM and returns its end.
    pub async fn end(&mut self) -> Ended {
        self.running.take().expect(IS_RUNNING).stop("TERM").await
    }

    /// As [`Process::end`], for a process that must end with status 0.
    pub async fn stop(&mut self) {
        let ended = self.end().await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(&mut self) {
        self.running.take().expect(IS_RUNNING).kill().await;
    }
}
