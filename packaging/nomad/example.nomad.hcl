# A Nomad job whose program has one device for itself alone, as long as it runs. Nomad kills `tendril lease`, which ends
# its program; the lease ends with it.
job "train" {
  type = "batch"
  group "train" {
    task "train" {
      driver = "raw_exec"
      config {
        command = "tendril"
        args    = ["lease", "-n", "1", "--wait=10m", "--", "tendril", "run", "--", "clinfo", "--list"]
      }
    }
  }
}
