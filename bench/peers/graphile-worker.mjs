// graphile-worker: node graphile-worker.mjs add|run DATABASE_URL SECONDS
// `add` adds single jobs from 32 callers; `run` executes no-op jobs that were added before.
// The table is vacuumed before the measurement, as for every queue.
// Tuned for throughput according to its documentation: 24 concurrent jobs, a local queue of 500, batched completion.
import { Logger, makeWorkerUtils, run } from 'graphile-worker'

const [what, connectionString, seconds] = process.argv.slice(2)
const logger = new Logger(() => () => {})
const milliseconds = Number(seconds) * 1000
const utils = await makeWorkerUtils({ connectionString, maxPoolSize: 32, logger })
await utils.migrate()
const payload = { to: 'ada@example.com', template: 'welcome', variables: { name: 'Ada' } }

async function add() {
  let added = 0
  const began = performance.now()
  const caller = async () => {
    while (performance.now() - began < milliseconds) {
      await utils.addJob('noop', payload)
      added += 1
    }
  }
  await Promise.all(Array.from({ length: 32 }, caller))
  return { count: added, seconds: (performance.now() - began) / 1000 }
}

async function work() {
  const jobs = 200_000
  await utils.withPgClient(client => client.query(
    `select graphile_worker.add_jobs(array(select row('noop', '{}'::json, null, null, null, null, null, null)::graphile_worker.job_spec from generate_series(1, $1::int)))`, [jobs]))
  await utils.withPgClient(client => client.query('vacuum analyze graphile_worker._private_jobs'))
  let done = 0
  let began
  let finish
  const finished = new Promise(resolve => { finish = resolve })
  const timer = setTimeout(() => finish(), milliseconds + 5000)
  const runner = await run({
    connectionString,
    logger,
    noHandleSignals: true,
    taskList: { noop: () => {
      began ??= performance.now()
      done += 1
      if (done >= jobs || performance.now() - began > milliseconds) finish()
    } },
    preset: { worker: { concurrentJobs: 24, maxPoolSize: 10, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
  })
  await finished
  // A job is complete when its row is deleted, not when its task has run.
  const { rows } = await utils.withPgClient(client => client.query('select count(*)::int as waiting from graphile_worker._private_jobs'))
  const completed = jobs - rows[0].waiting
  const took = (performance.now() - began) / 1000
  clearTimeout(timer)
  await runner.stop()
  return { count: completed, seconds: took }
}

const told = what === 'add' ? await add() : await work()
console.log(JSON.stringify(told))
await utils.release()
process.exit(0)
