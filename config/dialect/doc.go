// Package dialect translates configurations of DeepSpeed, Accelerate and the Hugging Face Trainer
// into jobs.
package dialect
