// pg-boss: node pg-boss.mjs add|run DATABASE_URL SECONDS
// `add` sends single jobs from 32 callers; `run` fetches and completes no-op jobs in batches of 500.
import PgBoss from 'pg-boss'

const [what, connectionString, seconds] = process.argv.slice(2)
const milliseconds = Number(seconds) * 1000
const boss = new PgBoss({ connectionString, max: 32, supervise: false, schedule: false })
boss.on('error', error => { console.error(error); process.exit(1) })
await boss.start()
await boss.createQueue('noop')
const payload = { to: 'ada@example.com', template: 'welcome', variables: { name: 'Ada' } }

async function add() {
  let added = 0
  const began = performance.now()
  const caller = async () => {
    while (performance.now() - began < milliseconds) {
      await boss.send('noop', payload)
      added += 1
    }
  }
  await Promise.all(Array.from({ length: 32 }, caller))
  return { count: added, seconds: (performance.now() - began) / 1000 }
}

async function work() {
  for (let batch = 0; batch < 60; batch += 1) {
    await boss.insert(Array.from({ length: 1000 }, () => ({ name: 'noop', data: payload })))
  }
  // As for every queue before the measurement.
  await boss.getDb().executeSql('vacuum analyze pgboss.job')
  let done = 0
  const began = performance.now()
  const worker = async () => {
    while (performance.now() - began < milliseconds) {
      const jobs = await boss.fetch('noop', { batchSize: 500 })
      if (jobs.length === 0) return
      await boss.complete('noop', jobs.map(job => job.id))
      done += jobs.length
    }
  }
  await Promise.all([worker(), worker(), worker(), worker()])
  return { count: done, seconds: (performance.now() - began) / 1000 }
}

const told = what === 'add' ? await add() : await work()
console.log(JSON.stringify(told))
await boss.stop({ graceful: false })
process.exit(0)
